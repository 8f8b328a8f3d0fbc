"""Peers with small programs of the test in their place."""

import sys

import psutil
import pytest
import torch

from bench import peers
from bench.errors import BenchError
from bench.export import export
from tests.unit.models.tiny import Recipe
from worker.models.load import load_model

SERVER = """
import http.server, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path == "/v1/models" else 404)
        self.end_headers()
http.server.HTTPServer((sys.argv[2], int(sys.argv[4])), Handler).serve_forever()
"""


def test_a_peer_is_started_and_stopped(tmp_path):
    with peers.running(peers.Peer("peer", [sys.executable, "-c", SERVER]), tmp_path / "log") as running:
        assert running.process.is_running()
        assert running.resident_mib > 1
        pid = running.process.pid
    assert not psutil.pid_exists(pid)


def test_a_peer_that_cannot_start_is_named(tmp_path):
    peer = peers.Peer("peer", [sys.executable, "-c", "raise SystemExit('no such model')"])
    with (
        pytest.raises(BenchError, match=r"(?s)peer ended with 1.*no such model"),
        peers.running(peer, tmp_path / "log"),
    ):
        pass


def test_without_programs_there_are_no_peers(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert peers.found(tmp_path, "m", 2) == []


def test_the_exported_model_has_the_same_weights(tmp_path):
    gguf, folder = Recipe().write(tmp_path / "tiny.gguf"), tmp_path / "folder"
    folder.mkdir()
    export(gguf, folder)
    ours, theirs = (load_model(path, "fp32") for path in (gguf, folder))
    assert theirs.card.eos_ids == ours.card.eos_ids
    assert theirs.config == ours.config
    assert torch.equal(theirs.weights.embedding, ours.weights.embedding.bfloat16().float())
    x = torch.randn(3, ours.config.hidden)
    torch.testing.assert_close(theirs.weights.head(x), ours.weights.head(x), rtol=2e-2, atol=2e-1)
