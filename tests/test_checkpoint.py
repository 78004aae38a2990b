"""The model on disk: its conversion is right, and damage is told in one line."""

from __future__ import annotations

import numpy as np
import pytest
from fake_model import NAME, write_fake_model

from mpcore.paths import PASSAGES
from mpcore.workloads import checkpoint, convert, fetch
from mpcore.workloads.checkpoint import CheckpointError, ModelMissing, open_checkpoint

needs_model = pytest.mark.skipif(
    not fetch.is_present(NAME), reason=f"the model is absent; mpcore fetch {NAME}"
)


@pytest.fixture
def models(tmp_path, monkeypatch):
    monkeypatch.setenv("MPCORE_MODELS", str(tmp_path / "models"))
    return tmp_path / "models"


@pytest.fixture(scope="module")
def model():
    return open_checkpoint(NAME)


def test_a_sound_model_opens_read_only(models):
    write_fake_model(models)
    opened = open_checkpoint(NAME)
    assert opened.weights["embed_tokens"][1, 0] == 8
    with pytest.raises(ValueError, match="read-only"):
        opened.weights["embed_tokens"][0, 0] = 1
    assert opened.identity.licence == "Apache-2.0"


def test_an_absent_model_says_which_command_fetches_it(models):
    with pytest.raises(CheckpointError, match="run: mpcore fetch smollm2-135m"):
        open_checkpoint(NAME)


def test_an_unknown_model_is_named_with_the_known_ones(models):
    with pytest.raises(CheckpointError, match="'gpt' is unknown; known models: smollm2-135m"):
        open_checkpoint("gpt")


@pytest.mark.parametrize(
    ("file", "damage", "said"),
    [
        (checkpoint.WEIGHTS, lambda data: data[:-100], "32,668 bytes where 32,768 are expected"),
        (checkpoint.WEIGHTS, lambda data: data[:9000] + b"!" + data[9001:], "damaged, digest"),
        (checkpoint.TOKENIZER, lambda data: data + b" ", "tokenizer.json: damaged"),
        (checkpoint.INDEX, lambda data: data[:40], "weights.json: damaged"),
        (checkpoint.INDEX, lambda data: b"[]", "weights.json: damaged"),
        (checkpoint.INDEX, lambda data: data.replace(b'"heads": 2', b'"heads": 4'), "its digest"),
        (checkpoint.INDEX, lambda data: data.replace(b"32768,", b'"x",'), "its digest"),
        (checkpoint.INDEX, lambda data: b"[" * 100_000, "weights.json: damaged"),
        (checkpoint.INDEX, lambda data: data.replace(b"b179", b"b170"), "made from another file"),
    ],
)
def test_damage_is_told_in_one_line_with_what_to_do(models, file, damage, said):
    path = write_fake_model(models) / file
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(CheckpointError, match=said) as caught:
        open_checkpoint(NAME)
    assert "\n" not in str(caught.value) and "mpcore fetch smollm2-135m" in str(caught.value)
    assert not fetch.is_present(NAME)


def test_a_missing_model_is_fetched_and_a_damaged_one_is_not_replaced(models, monkeypatch):
    fetched = []
    monkeypatch.setattr(fetch, "fetch", lambda model, **_: fetched.append(model))
    fetch.make_present(NAME)
    folder = write_fake_model(models)
    index = folder / checkpoint.INDEX
    text = index.read_text(encoding="utf-8")
    index.write_text(text.replace(checkpoint.LAYOUT, "mpcore.weights/1"), encoding="utf-8")
    with pytest.raises(ModelMissing, match="another version"):
        open_checkpoint(NAME)
    fetch.make_present(NAME)
    assert fetched == [NAME, NAME]
    index.write_text(text, encoding="utf-8")
    assert fetch.make_present(NAME) == folder
    for file in (checkpoint.WEIGHTS, checkpoint.TOKENIZER, checkpoint.INDEX):
        (folder / file).unlink()
        with pytest.raises(CheckpointError, match="run: mpcore fetch"):
            fetch.make_present(NAME)
    assert fetched == [NAME, NAME]


def test_half_split_order_turns_the_same_pairs():
    """Adjacent-pair rotation of GGUF's rows equals rotate-half of the rows put back."""
    heads, width, angle = 3, 8, np.linspace(0.1, 1, 4)
    rng = np.random.default_rng(0)
    stored, x = rng.normal(size=(heads * width, 5)), rng.normal(size=5)

    pairs = (stored @ x).reshape(heads, width // 2, 2)
    a, b = pairs[..., 0], pairs[..., 1]
    adjacent = np.stack(
        [a * np.cos(angle) - b * np.sin(angle), b * np.cos(angle) + a * np.sin(angle)]
    )

    y = (convert.half_split_rows(stored, heads) @ x).reshape(heads, 2, width // 2)
    low, high = y[:, 0], y[:, 1]
    halves = np.stack(
        [low * np.cos(angle) - high * np.sin(angle), high * np.cos(angle) + low * np.sin(angle)]
    )
    assert np.array_equal(adjacent, halves)


def test_names_follow_hugging_face():
    assert convert.hugging_face_name("token_embd.weight") == "embed_tokens"
    assert convert.hugging_face_name("blk.7.attn_q.weight") == "layers.7.self_attn.q_proj"
    with pytest.raises(CheckpointError, match=r"'blk\.7\.attn_q\.bias' has no place"):
        convert.hugging_face_name("blk.7.attn_q.bias")


def test_a_full_disk_is_told_before_anything_is_written(tmp_path):
    with pytest.raises(CheckpointError, match=r"MB free where the weights need .* MPCORE_MODELS"):
        convert.require_space(tmp_path / "not" / "there", 10**18, "the weights")


@needs_model
def test_the_model_has_every_operator_in_its_shape(model):
    for operator in model.config.operators():
        name = "embed_tokens" if operator == "lm_head" else operator
        assert model.weights[name].shape == model.config.operator_shape(operator)
    assert model.weights["norm"].shape == (model.config.width,)
    assert len(model.weights) == 272


@needs_model
def test_every_passage_survives_the_tokeniser(model):
    for path in PASSAGES.glob("*/*.txt"):
        text = path.read_text(encoding="utf-8")
        assert model.decode(model.encode(text)) == text


@needs_model
def test_digits_are_split_spaces_kept_and_special_tokens_whole(model):
    pieces = model.tokenizer.encode("Café 12345 don't\n\n\tx = 22  <|im_start|>").tokens
    assert pieces == [
        *("C", "af", "Ã©", "Ġ", "1", "2", "3", "4", "5", "Ġdon", "'t", "ĊĊ", "ĉ", "x", "Ġ="),
        *("Ġ", "2", "2", "ĠĠ", "<|im_start|>"),
    ]


@needs_model
def test_text_that_the_tokeniser_would_lose_is_refused(model):
    with pytest.raises(CheckpointError, match="no tokens for"):
        model.encode("a\x04b")
