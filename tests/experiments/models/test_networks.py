"""Backbones and their weights, DeeperGCN and GCN, sentence encoders, heads."""

import argparse
import copy

import huggingface_hub
import pytest
import timm
import torch
from safetensors.torch import save_file
from torch import nn
from torch_geometric.data import Batch, Data

from experiments.data.celltypegraph import find_specimens, read_specimen
from experiments.data.graphs import write_random_specimens
from experiments.models import graphs, images, text
from experiments.models.heads import Head, build_head
from experiments.models.images import build_backbone, load_mae
from experiments.models.options import GraphModel, ImageModel, TextModel

SMALL = {"embed_dim": 32, "depth": 3, "num_heads": 2}


@pytest.mark.parametrize("kind", ["mlp", "linear", "cosine"])
def test_heads_are_normalised_and_seeded(kind):
    state = torch.get_rng_state()
    head, other = (build_head(Head(kind, hidden=8, output_norm=True), 5, 3, seed=1) for _ in range(2))
    assert torch.equal(state, torch.get_rng_state())
    assert all(torch.equal(a, b) for a, b in zip(head.parameters(), other.parameters(), strict=True))
    scores = head.train()(10 * torch.randn(64, 5))
    torch.testing.assert_close(scores.mean(0), torch.zeros(3), atol=1e-5, rtol=0)
    torch.testing.assert_close(scores.var(0, unbiased=False), torch.ones(3), atol=1e-3, rtol=0)


# ---------------------------------------------------------------------------------------------------------- images


@pytest.fixture
def pretrained():
    torch.manual_seed(1)
    model = timm.create_model("vit_tiny_patch16_224", img_size=64, num_classes=0, **SMALL)
    for p in model.parameters():
        nn.init.normal_(p, std=0.3)  # no parameter at a value it might have by chance
    return model.eval()


def fresh(size=64):
    return timm.create_model("vit_tiny_patch16_224", img_size=size, num_classes=0, global_pool="avg", **SMALL).eval()


def test_mae_weights_reproduce_timms_features(pretrained):
    """The names of facebookresearch/mae's mae_pretrain_vit_*.pth, with the decoder of a whole checkpoint."""
    state = pretrained.state_dict() | {"mask_token": torch.zeros(1, 1, 8), "decoder_embed.weight": torch.zeros(8, 32)}
    model, larger, inputs = fresh(), fresh(96), torch.randn(3, 3, 64, 64)
    load_mae(model, state, "file")
    pretrained.norm = nn.Identity()  # the tokens before their norm
    tokens = pretrained.forward_features(inputs)
    assert torch.equal(model.forward_features(inputs), tokens)
    # pooled as MAE's fine-tuning does: the mean of the patches, without the class token, then a fresh norm
    assert torch.equal(model(inputs), nn.functional.layer_norm(tokens[:, 1:].mean(1), (32,), eps=1e-6))
    load_mae(larger, state | {"pos_embed": torch.full_like(state["pos_embed"], 0.5)}, "file")
    torch.testing.assert_close(larger.pos_embed, torch.full_like(larger.pos_embed, 0.5))  # interpolated


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: s.pop("blocks.1.attn.qkv.weight"), 'Missing .*: "blocks.1.attn.qkv.weight"'),
        (lambda s: s.update({"blocks.9.x": torch.zeros(1)}), 'Unexpected .*: "blocks.9.x"'),
        (lambda s: s.update({"cls_token": torch.zeros(1, 1, 5)}), "size mismatch for cls_token"),
    ],
)
def test_weights_that_do_not_fit_are_refused(pretrained, change, message):
    state = dict(pretrained.state_dict())
    change(state)
    with pytest.raises(ValueError, match=f"my.pth does not fit the model: .*{message}"):
        load_mae(fresh(), state, "my.pth")


@pytest.mark.parametrize("kind", ["pth", "legacy", "safetensors"])
def test_a_training_checkpoint_with_its_options_is_loaded(tmp_path, kind):
    state = build_backbone(ImageModel("test_vit"), 32).state_dict()
    for value in state.values():
        nn.init.normal_(value)
    file = tmp_path / f"weights.{kind}"
    if kind == "safetensors":
        save_file(state, file)
    else:
        content = {"model": state, "args": argparse.Namespace(blr=1e-3)}
        torch.save(content, file, _use_new_zipfile_serialization=kind == "pth")
    loaded = build_backbone(ImageModel("test_vit", str(file)), 32).state_dict()
    assert all(torch.equal(loaded[name], value) for name, value in state.items())


class Code:
    def __reduce__(self):
        return print, ("ran",)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ([1, 2], "need tensors by their names, got list"),
        ({"model": {"blocks": 3}}, "need tensors by their names"),
        ({"x": Code()}, "holds objects that could run code and are not loaded"),
        (b"123", "cannot be loaded: it is"),
    ],
)
def test_files_without_weights_are_one_line_and_run_nothing(content, said, tmp_path, capsys):
    file = tmp_path / "weights.pth"
    file.write_bytes(content) if isinstance(content, bytes) else torch.save(content, file)
    with pytest.raises(ValueError, match=said) as raised:
        build_backbone(ImageModel("test_vit", str(file)), 32)
    assert "\n" not in str(raised.value)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("model", "size", "message"),
    [
        (ImageModel("vit_bse_patch16_224"), 32, "is not a model of timm, did you mean vit_base_patch16_224"),
        (ImageModel("test_vit", weights="/no/file.pth"), 32, "a file, got '/no/file.pth'"),
        (ImageModel("resnet10t", weights="packaged"), 32, "packaged is for model.name tf_efficientnet_lite0"),
        (ImageModel("vgg11", drop_path=0.1), 32, "vgg11: .*set model.drop_path to 0"),
        (ImageModel("convmixer_768_32", drop_path=0.1), 64, "convmixer_768_32 has no stochastic depth"),
    ],
)
def test_wrong_models_are_named(model, size, message):
    with pytest.raises(ValueError, match=message):
        build_backbone(model, size)


def test_packaged_weights_load_and_know_something():
    model = build_backbone(ImageModel("tf_efficientnet_lite0", "packaged", drop_path=0.0), 128)
    assert model.bn1.running_var.std() > 0.1  # trained BatchNorm statistics, not the initial ones


def test_features_are_standardised_once_measured():
    network = images.build_network(ImageModel("test_vit", drop_path=0.0), Head("linear"), 5, 32)
    features = 3 * torch.randn(100, 64) + 2
    features[:, 7] = 4.0  # never varies
    network.scale.measure(features)
    out = network.scale(features)
    torch.testing.assert_close(out.mean(0), torch.zeros(64), atol=1e-5, rtol=0)
    assert out[:, 7].abs().max() == 0


@pytest.mark.parametrize("weights", ["mae", "hub"])
def test_without_a_connection_the_option_for_a_file_is_named(weights, monkeypatch, tmp_path):
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(ValueError, match=rf"weights {weights}: cannot download .*--model.weights FILE"):
        build_backbone(ImageModel("vit_tiny_patch16_224", weights), 224)


# ---------------------------------------------------------------------------------------------------------- graphs


@pytest.fixture(scope="module")
def two(tmp_path_factory) -> list[Data]:
    found = find_specimens(write_random_specimens(tmp_path_factory.mktemp("specimens"), specimens=2, nodes=40))
    read = [read_specimen(path) for path in found]
    for graph in read:
        graph.x, graph.edge_attr = graph.x.double(), graph.edge_attr.double()
    return read


def make(edges: bool = True, layers: int = 4, **options) -> nn.Module:
    torch.manual_seed(0)
    model = GraphModel(hidden=16, layers=layers, **options)
    return graphs.build_network(model, Head("linear"), 74, 11 if edges else 0, 9).double()


MODELS = {
    "edges": lambda: make(),
    "no edges": lambda: make(False),
    "deep": lambda: make(layers=32),
    "gcn": lambda: make(name="gcn"),
}


def scores_and_gradients(net, *graphs):
    scores = torch.cat([net(graph) for graph in graphs])
    return scores, torch.autograd.grad(scores.square().sum(), list(net.parameters()))


@pytest.mark.parametrize("model", MODELS)
def test_permuting_nodes_permutes_scores(two, model):
    (graph, _), net = two, MODELS[model]().eval()
    order, edges = torch.randperm(graph.num_nodes), torch.randperm(graph.num_edges)
    place = torch.argsort(order)[graph.edge_index][:, edges]
    permuted = Data(x=graph.x[order], edge_index=place, edge_attr=graph.edge_attr[edges])
    torch.testing.assert_close(net(permuted), net(graph)[order], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("model", MODELS)
def test_a_batch_equals_separate_graphs_forward_and_backward(two, model):
    net = MODELS[model]().eval()  # no dropout
    together, ours = scores_and_gradients(net, Batch.from_data_list(two))
    apart, theirs = scores_and_gradients(net, *two)
    torch.testing.assert_close(together, apart, rtol=1e-9, atol=1e-9)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-7, atol=1e-7 * float(a.abs().max() + 1))


def test_deepergcn_is_the_published_stack(two):
    """Written out: encode, first convolution alone, res+ layers, layer 0's norm and activation, head."""
    net, graph = make(layers=3).eval(), two[0]
    edge = net.edge_encoder(graph.edge_attr)
    x = net.layers[0].conv(net.node_encoder(graph.x), graph.edge_index, edge)
    for layer in list(net.layers)[1:]:
        x = x + layer.conv(torch.relu(layer.norm(x)), graph.edge_index, edge)
    torch.testing.assert_close(net(graph), net.head(torch.relu(net.layers[0].norm(x))))
    for layer in net.layers:
        assert (layer.block, layer.dropout) == ("res+", 0.1)
        assert layer.conv.aggr_module.t.requires_grad
        assert isinstance(layer.conv.mlp[1], nn.LayerNorm)
    assert net.head.bias is not None


@pytest.mark.parametrize("model", ["no edges", "gcn"])
def test_sparse_features_score_and_learn_as_dense_ones(two, model):
    dense, sparse = copy.copy(two[0]), copy.copy(two[0])
    dense.x = dense.x * (torch.rand_like(dense.x) < 0.1)
    sparse.x = dense.x.to_sparse()
    net = MODELS[model]().eval()
    ours, theirs = (scores_and_gradients(net, graph) for graph in (dense, sparse))
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)


# ------------------------------------------------------------------------------------------------------------ text

SENTENCES = ["my card is lost", "hello", "how much is the fee for a transfer to another country today, please"]


@pytest.fixture(scope="module")
def network():
    return text.build_network(TextModel(), Head("linear"), 3).eval()


def test_an_embedding_is_the_mean_of_its_own_tokens(network):
    """Whatever is in the batch or the padding: compared with the encoder on one sentence alone."""
    tokens = text.tokenise(TextModel(), SENTENCES, 8)
    assert (tokens != text.PADDING).sum(1).tolist() == [6, 3, 8]  # the last one cut
    wider = nn.functional.pad(tokens, (0, 9), value=text.PADDING)
    with torch.no_grad():
        together = network.embed(wider)
        for row, embedding in zip(tokens, together, strict=True):
            alone = row[row != text.PADDING][None]
            states = network.backbone.encoder(input_ids=alone).last_hidden_state[0]
            torch.testing.assert_close(embedding, states.mean(0), atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(network(tokens), network.head(together))


def test_the_weights_mean_something(network):
    """Sentences of like meaning are near each other, which random weights do not know."""
    pair = ["i want to cancel the flight", "please call off my plane ticket", "the soup was too hot"]
    with torch.no_grad():
        a, b, other = nn.functional.normalize(network.embed(text.tokenise(TextModel(), pair, 48)))
    assert a @ b > 0.5 > a @ other


def test_blank_sentences_and_unknown_encoders_are_named():
    for blank in ("", "  \t", "\N{ZERO WIDTH SPACE}"):
        with pytest.raises(ValueError, match=r"a sentence has no words: got '[^\n]*'$"):
            text.tokenise(TextModel(), ["hello", blank], 8)
    with pytest.raises(ValueError, match=r"must be minilm or a folder with a Hugging Face encoder, got 'bert'"):
        text.build_network(TextModel("bert"), Head("linear"), 3)
