"""What was embedded is found again: by content, by encoder, after interruptions, in other processes."""

import os
import threading

import numpy as np
import pytest
import torch
from torch import nn

from phenogroups.data import embeddings
from phenogroups.data.embeddings import Folder, Memory, embeddings_folder, keeping_embeddings, key_of
from phenogroups.networks.encoder import Encoder
from phenogroups.training.embedding import embed_once


class Counting(Encoder):
    """Counts the rows that it is asked for; a row that only fills up a batch is one of them."""

    dim = 5

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(2 * 4 * 4, self.dim))
        self.batches: list[int] = []

    def forward(self, x):
        self.batches.append(len(x))
        return self.layers(x)

    def rows_at_once(self, shape):
        return 4


@pytest.fixture
def inputs() -> np.ndarray:
    return np.random.default_rng(0).random((10, 2, 4, 4), dtype=np.float32)


@pytest.fixture
def encoder() -> Counting:
    return Counting().freeze()


def by_hand(encoder, inputs):
    with torch.no_grad():
        return encoder.layers(torch.tensor(inputs)).numpy()


def test_every_row_is_seen_once_in_batches_of_one_size(encoder, inputs, tmp_path):
    with keeping_embeddings(tmp_path):
        found = embed_once(encoder, inputs)
        np.testing.assert_allclose(found, by_hand(encoder, inputs), atol=1e-6)
        assert encoder.batches == [4, 4, 4]
        np.testing.assert_array_equal(embed_once(encoder, inputs[::-1])[::-1], found)
        np.testing.assert_array_equal(embed_once(encoder, inputs[3:5]), found[3:5])
    assert encoder.batches == [4, 4, 4]
    with keeping_embeddings(tmp_path):  # as another command would
        np.testing.assert_array_equal(embed_once(encoder, inputs), found)
        assert encoder.batches == [4, 4, 4]
        embed_once(encoder, np.concatenate([inputs, inputs[:1] / 2]))
    assert encoder.batches == [4, 4, 4, 4]


def test_a_changed_image_or_another_encoder_finds_nothing(encoder, inputs, tmp_path):
    with keeping_embeddings(tmp_path):
        embed_once(encoder, inputs)
        changed = inputs.copy()
        changed[7, 1, 2, 3] += 1e-3
        np.testing.assert_allclose(embed_once(encoder, changed), by_hand(encoder, changed), atol=1e-6)
        assert len(encoder.batches) == 4
        other = Counting(seed=1).freeze()
        np.testing.assert_allclose(embed_once(other, inputs), by_hand(other, inputs), atol=1e-6)
        assert len(other.batches) == 3
    assert len(list(tmp_path.iterdir())) == 2


def test_keys_tell_shape_and_type():
    row = np.arange(4, dtype=np.float32)
    assert key_of(row) == key_of(row.copy())
    assert len({key_of(row), key_of(row.reshape(2, 2)), key_of(row.view(np.int32)), key_of(row[::-1])}) == 4


def test_an_interrupted_embedding_goes_on(encoder, inputs, tmp_path):
    class Interrupted(Exception):
        pass

    def stop(done, total):
        assert total == 10
        if done >= 8:
            raise Interrupted

    with (
        keeping_embeddings(tmp_path), embeddings.embedding_progress(stop), pytest.raises(Interrupted),
    ):  # fmt: skip
        embed_once(encoder, inputs)
    (path,) = tmp_path.iterdir()
    record = path.stat().st_size // 8
    with path.open("ab") as file:
        file.write(b"torn" * 7)  # as a process that was killed while it wrote
    with keeping_embeddings(tmp_path):
        np.testing.assert_allclose(embed_once(encoder, inputs), by_hand(encoder, inputs), atol=1e-6)
    assert encoder.batches == [4, 4, 4]
    assert path.stat().st_size == 10 * record
    with keeping_embeddings(tmp_path):
        embed_once(encoder, inputs)
    assert encoder.batches == [4, 4, 4]


def test_a_damaged_record_is_made_again(encoder, inputs, tmp_path):
    with keeping_embeddings(tmp_path):
        found = embed_once(encoder, inputs)
    (path,) = tmp_path.iterdir()
    content = bytearray(path.read_bytes())
    content[3 * len(content) // 10 + 40] ^= 1
    path.write_bytes(content)
    with keeping_embeddings(tmp_path):
        np.testing.assert_array_equal(embed_once(encoder, inputs), found)
    assert encoder.batches == [4, 4, 4, 4]


def test_a_folder_that_cannot_be_written_is_done_without(encoder, inputs, tmp_path):
    (tmp_path / "file").write_text("")
    said = []
    with keeping_embeddings(tmp_path / "file" / "folder", said.append):
        found = embed_once(encoder, inputs)
        np.testing.assert_array_equal(embed_once(encoder, inputs), found)
    np.testing.assert_allclose(found, by_hand(encoder, inputs), atol=1e-6)
    assert len(said) == 1
    assert "cannot be kept" in said[0]
    assert len(encoder.batches) == 3  # in memory instead


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no device that is always full")
def test_a_full_disk_is_said_once(encoder, inputs, tmp_path):
    (tmp_path / f"{encoder.identity}.embeddings").symlink_to("/dev/full")
    said = []
    with keeping_embeddings(tmp_path, said.append):
        np.testing.assert_allclose(embed_once(encoder, inputs), by_hand(encoder, inputs), atol=1e-6)
    assert len(said) == 1


def test_memory_forgets_the_oldest():
    memory = Memory(most=3 * 4 * 2)
    memory.add("a", [b"1", b"2"], np.ones((2, 2), np.float32))
    memory.add("a", [b"3", b"4"], np.ones((2, 2), np.float32))
    assert memory.find("a", b"1") is None
    assert [memory.find("a", key) is not None for key in (b"2", b"3", b"4")] == [True] * 3
    assert memory.find("b", b"4") is None


def test_forgotten_afterwards_if_so_asked(encoder, inputs):
    for _ in range(2):
        with keeping_embeddings(None):
            embed_once(encoder, inputs)
            embed_once(encoder, inputs)
    assert len(encoder.batches) == 6


def test_writers_at_once_spoil_nothing(tmp_path):
    keys = [bytes([i]) * 32 for i in range(200)]
    vectors = np.arange(200, dtype=np.float32)[:, None].repeat(300, axis=1)

    def write(part):
        folder = Folder(tmp_path, pytest.fail)
        folder.look_again("a", 300)
        for i in range(part, 200, 4):
            folder.add("a", keys[i : i + 1], vectors[i : i + 1])

    threads = [threading.Thread(target=write, args=(part,)) for part in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    folder = Folder(tmp_path, pytest.fail)
    folder.look_again("a", 300)
    for key, vector in zip(keys, vectors, strict=True):
        np.testing.assert_array_equal(folder.find("a", key), vector)


def test_they_lie_beside_the_decoded_images(tmp_path, monkeypatch):
    assert embeddings_folder(tmp_path) == tmp_path / "embeddings"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert embeddings_folder(None) == tmp_path / "phenogroups" / "embeddings"
