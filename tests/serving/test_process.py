"""Tests of `rljax serve` as a process and on the command line: signals, ports, keys and missing packages."""

import concurrent.futures
import signal
import sys
import time

import httpx
import pytest
from served_model import NAME, make_model, post, server_process
from small_cli import printed, refused

from rljax.programs.serving import listen

FLAGS = ("--context", "1100", "--max-response-tokens", "1000", "--rows", "2")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_model(tmp_path_factory.mktemp("models") / NAME)


def test_sigterm_completes_running_requests_and_rejects_new_ones(folder):
    with server_process(folder, *FLAGS) as (process, url), concurrent.futures.ThreadPoolExecutor(4) as threads:
        body = {"prompt": [9], "n": 8, "max_tokens": 1000, "seed": 1, "top_k": 100}
        running = threads.submit(post, url, "/v1/completions", **body)
        while not httpx.get(f"{url}/health", trust_env=False).json()["running"]:
            time.sleep(0.01)
        process.send_signal(signal.SIGTERM)
        answer = running.result(60)
        assert answer.status_code == 200
        assert len(answer.json()["choices"]) == 8
        assert process.wait(20) == 0
        assert "all responses were completed" in process.stderr.read()
        with pytest.raises(httpx.ConnectError):
            post(url, "/v1/completions", **body)


def test_ctrl_c_stops_an_idle_server(folder):
    with server_process(folder) as (process, _):
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0


def test_port_in_use_is_rejected(folder, capsys):
    with listen("127.0.0.1", 0) as listener:
        port = str(listener.getsockname()[1])
        refused(capsys, f"cannot listen on 127.0.0.1:{port} .*in use", "serve", str(folder), "--port", port)
    refused(capsys, "choose another --host or --port", "serve", str(folder), "--port", "70000")
    with listen("::1", 0) as listener:
        port = str(listener.getsockname()[1])
        refused(capsys, rf"cannot listen on \[::1\]:{port} ", "serve", str(folder), "--host", "::1", "--port", port)


def test_invalid_settings_are_rejected(folder, tmp_path, capsys):
    refused(capsys, "a response must be shorter than the context", "serve", str(folder), "--port", "0", "--context", "100")
    (tmp_path / "key").write_text("\n")
    refused(capsys, "is empty", "serve", str(folder), "--port", "0", "--api-key-file", str(tmp_path / "key"))
    for content in (b"one\ntwo", b"\xff\xfe", "sécret".encode()):
        (tmp_path / "key").write_bytes(content)
        refused(
            capsys, "character that cannot be sent in a header", "serve", "nowhere", "--api-key-file", str(tmp_path / "key")
        )
    for flag, value in (
        ("--grace-seconds", "nan"),
        ("--grace-seconds", "-1"),
        ("--max-body-bytes", "0"),
        ("--version", "-1"),
    ):
        refused(capsys, f"{flag} is {value}.*; it must", "serve", "nowhere", flag, value)


def test_missing_package_error_names_the_package(folder, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    refused(capsys, r"pip install -e '.\[serve\]'", "serve", str(folder))


def test_help_lists_the_flags(capsys):
    with pytest.raises(SystemExit, match="0"):
        printed(capsys, "serve", "--help")
    assert "--api-key-file" in capsys.readouterr().out
