"""Test a server under load: `python tests/soak/served.py --requests 10000 --garbage 5000 --result tests/soak/served.json`.

64 concurrent clients send chat requests to `rljax serve`, which runs a small model in another process; malformed requests
follow. The server's memory, descriptors and threads are read from `/proc`, so this runs only on Linux. The exit code is 1
if the server is unhealthy at the end, or if, from the second quarter of the requests to the last, peak memory grows by more
than 2%, or the peak number of descriptors or threads by more than two. A wrong status raises an error.
"""

import argparse
import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
from datetime import date
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "serving"))

import httpx
from served_model import NAME, make_model, server_process
from test_server import fuzz

CLIENTS, TOKENS, LARGEST_GROWTH, MAX_MORE = 64, 16, 0.02, 2
KINDS = ("megabytes", "descriptors", "threads")


def measure(process: int) -> tuple[float, float, float]:
    """Measure the memory in MB, the descriptors and the threads of a process."""
    own = Path(f"/proc/{process}")
    pages = int((own / "statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6, len(list((own / "fd").iterdir())), len(list((own / "task").iterdir()))


async def load(url: str, process: int, count: int) -> tuple[list[float], list[tuple[float, float, float]], int]:
    """Send requests from all clients; return times in seconds, measurements, and the number of sampled tokens."""
    times: list[float] = []
    rows: list[tuple[float, float, float]] = []
    tokens = 0
    left = iter(range(count))

    async def send_requests(client: httpx.AsyncClient) -> None:
        nonlocal tokens
        for index in left:
            messages = [{"role": "user", "content": f"hello {index % 97}"}]
            body = {
                "model": NAME,
                "messages": messages,
                "max_tokens": TOKENS,
                "seed": index,
                "temperature": (index % 3) / 2,
            }
            begun = time.monotonic()
            answer = await client.post(f"{url}/v1/chat/completions", json=body)
            answer.raise_for_status()
            times.append(time.monotonic() - begun)
            tokens += answer.json()["usage"]["completion_tokens"]
            if index % 20 == 0:
                rows.append(measure(process))

    limits = httpx.Limits(max_connections=CLIENTS, max_keepalive_connections=CLIENTS)
    async with httpx.AsyncClient(timeout=120, trust_env=False, limits=limits) as client:
        await asyncio.gather(*[send_requests(client) for _ in range(CLIENTS)])
    return times, rows, tokens


def main() -> int:
    """Send the requests, and write the measurements."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--garbage", type=int, default=5_000)
    parser.add_argument("--paged-cache", help="value of --paged-cache for the server; by default the cache is contiguous")
    parser.add_argument("--result", type=Path, required=True)
    options = parser.parse_args()
    load_before = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder:
        model = make_model(Path(folder) / NAME)
        pages = () if options.paged_cache is None else ("--paged-cache", options.paged_cache)
        with server_process(model, "--context", "128", "--max-response-tokens", "64", *pages) as (process, url):
            begun = time.monotonic()
            try:
                times, rows, tokens = asyncio.run(load(url, process.pid, options.requests))
            except httpx.HTTPError:
                print("exit code of the server:", process.poll())
                raise
            seconds = time.monotonic() - begun
            statuses = fuzz(url, options.garbage, seed=1)
            health = httpx.get(f"{url}/health", trust_env=False).json()
    size = len(rows) // 4
    quarters = {
        kind: [round(max(row[index] for row in rows[i * size : (i + 1) * size]), 1) for i in range(4)]
        for index, kind in enumerate(KINDS)
    }
    percentiles = statistics.quantiles(times, n=100)
    result = {
        "command": " ".join(["python", *sys.argv]),
        "date": date.today().isoformat(),
        "load_before": round(load_before, 1),
        "clients": CLIENTS,
        "seconds": round(seconds, 1),
        "requests_per_second": round(options.requests / seconds, 1),
        "tokens_per_second": round(tokens / seconds),
        "latency_seconds": {
            "median": round(percentiles[49], 3),
            "95 %": round(percentiles[94], 3),
            "99 %": round(percentiles[98], 3),
        },
        "largest_by_quarter": quarters,
        "garbage_by_status": {str(status): count for status, count in sorted(statuses.items())},
        "health": health,
    }
    options.result.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))
    limits = {
        kind: values[1] * (1 + LARGEST_GROWTH) if kind == "megabytes" else values[1] + MAX_MORE
        for kind, values in quarters.items()
    }
    return int(any(quarters[kind][3] > limits[kind] for kind in KINDS) or health["status"] != "ok")


if __name__ == "__main__":
    raise SystemExit(main())
