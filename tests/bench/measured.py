"""The measured numbers of docs/speed.md and docs/feedback.md, made from what the benchmarks wrote.

    make bench                                # writes bench-results/*.json
    python tests/bench/measured.py [--write]

Prints tables, or puts them between the marks in these pages. A benchmark that was not run is left
out; a page whose benchmarks were not run stays as it is. Ratios compare medians of runs that
alternate; what they are compared with is said.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "bench-results"
BEGIN, END = "<!-- tests/bench/measured.py writes from here -->", "<!-- to here -->"

Rows = Sequence[Mapping[str, Any]]
Lines = Iterator[tuple[str, str]]


def selection(rows: Rows) -> Lines:
    """Exact selection beside what people write."""
    ours = {(row["case"], row["run"]): row for row in rows}
    for K in ("100", "10000", "1000000"):
        row = ours[f"K = {K}", "permute_and_flip"]
        text = f"{row['microseconds']:,.0f} µs, {row['ratio']:.1f} × an unsafe numpy softmax"
        yield f"one exact private choice among {int(K):,} actions", text
    peers = [row["ratio"] for row in rows if row["run"] == "OpenDP, public call"]
    if peers:
        text = f"{min(peers):,.0f} to {max(peers):,.0f} × our time"
        yield "the same by OpenDP's exact permute-and-flip, K = 10,000", text


def engine(tables: Mapping[str, Rows]) -> Lines:
    """Learning at array speed."""
    batches = {row["run"]: row["ratio"] for row in tables["batches"]}
    text = f"{batches['one key']:.1f} × the time of a bare `np.add.reduce`"
    yield "learning from a batch of one key, K = 100", text
    yield "the same with 1,000 keys", f"{batches['1000 keys']:.1f} ×"
    alive, new = (f"{row['microseconds_of_processor']:.0f} µs" for row in tables["singles"])
    yield "one event by `apply`, K = 10; the mean of a new key's first 100", f"{alive}; {new}"
    (born,) = tables["births"]
    yield "16 slots of each of 100,000 new keys", f"{born['slots_per_second'] / 1e6:.1f} M slots/s"
    sizes = " / ".join(f"{row['bytes_per_key']:,}" for row in tables["memory"])
    yield "bytes a key, all included, K = 2 / 10 / 100", sizes


def formats(rows: Rows) -> Lines:
    """Decoding, by format."""
    ours = {row["case"]: row["million_per_second"] for row in rows if row["run"] == "streamdp"}
    for case, name in (
        ("JSON list, 4 digits, K = 10", "JSON events decoded, K = 10"),
        ("JSON list, 4 digits, K = 100", "JSON events decoded, K = 100"),
        ("float32 × 1, prefix none, K = 100", "float32 rows decoded, K = 100"),
        ("float32 × 256, prefix none, K = 100", "the same in frames of 256 rows"),
    ):
        yield name, f"{ours[case]:,.1f} M/s"


def replay(rows: Rows) -> Lines:
    """A whole grid in one pass."""
    for row in rows:
        if row["run"] == "whole grid" and row["case"].endswith("clean"):
            yield f"replay of {row['case'][:-7]}", f"{row['ratio']:.1f} × one `np.add.reduce`"
        elif "megabytes" in row:
            yield f"replay of a {row['case']}", f"{row['megabytes']} MB resident"


def http(rows: Rows) -> Lines:
    """Look-ups while the service learns at full speed, and in memory."""
    ours = {row["run"]: row for row in rows}
    look_up, batch = ours["look-up"], ours["batch of 1,000 keys"]
    text = f"{look_up['per_second']:,}/s, {look_up['ratio']:.2f} × starlette's smallest route"
    yield "look-ups over HTTP while the service learns at full speed", text
    yield "one of them", f"p50 {look_up['p50_ms']:.1f} ms, p99 {look_up['p99_ms']:.1f} ms"
    text = f"p50 {batch['p50_ms']:.1f} ms, p99 {batch['p99_ms']:.1f} ms"
    yield "1,000 keys in one request, meanwhile", text
    in_memory = ours["client's look-up"]
    yield "a look-up in the client's cache", f"{in_memory['microseconds']:.2f} µs"


def service(rows: Rows) -> Lines:
    """How late, and how soon again."""
    for row in rows:
        if row["table"] == "delay":
            text = f"p50 {row['p50 ms']} ms, p99 {row['p99 ms']} ms"
            name = f"last record of a block to its visible action, {row['who']}"
            yield f"{name}, {row['records/s']:,} records/s", text
        elif row["table"] == "rebuild":
            text = f"{row['s rebuilding']} s, {row['read again']:,} records read again"
            yield f"rebuilding {row['keys']:,} learners after kill -9", text


def assemble(rows: Rows) -> Lines:
    """Requests and outcomes to events, beside joins of others."""
    by_who = {(row["table"], row["who"]): row for row in rows}
    rate = by_who.get(("throughput", "streamdp"))
    if rate is not None:
        what = "requests and outcomes that `assemble` joins in one second of processor time"
        second_input = [
            f"{by_who['throughput', f'{peer} per CPU']['ratio']:.1f} × {peer}"
            for peer in ("Kafka Streams", "Quix Streams")
            if ("throughput", f"{peer} per CPU") in by_who
        ]
        yield what, ", ".join([f"{rate['records/CPU s']:,}", *second_input])
    memory = by_who.get(("memory", "streamdp"))
    if memory is not None:
        second_input = [
            f"{row['ratio']:.2f} × {who.removeprefix('of ')}"
            for (table, who), row in by_who.items()
            if table == "memory" and who.startswith("of ")
        ]
        what = f"memory with {memory['open']:,} open requests"
        yield what, ", ".join([f"{memory['MiB']} MiB", *second_input])
    delay = by_who.get(("delay", "streamdp"))
    if delay is not None:
        what = f"deadline of a request to its event, {delay['requests/s']:,} requests/s"
        yield what, f"p50 {delay['p50 ms']} ms, p99 {delay['p99 ms']} ms"


def peers(rows: Rows) -> Iterator[str]:
    """Throughput beside the peers, as a table of its own."""
    full = [row for row in rows if row["table"] == "throughput" and row["processes"] == 1]
    if not full:
        return
    yield "| input | who | records/s | CPU s per M | peak MiB |"
    yield "|---|---|--:|--:|--:|"
    for row in full:
        yield (
            f"| {row['input']} | {row['who']} | {row['records/s']:,} | {row['CPU s/M']}"
            f" | {row['MiB']} |"
        )
    yield ""


TABLES: dict[str, Callable[[Any], Lines]] = {
    "service": lambda table: service(table["rows"]),
    "assemble": assemble,
    "formats": formats,
    "engine": engine,
    "selection": selection,
    "replay": replay,
    "http": http,
}


def results(names: Iterable[str]) -> dict[str, Any]:
    """What these benchmarks wrote, of those that were run."""
    paths = {name: RESULTS / f"bench_{name}.json" for name in names}
    return {
        name: json.loads(path.read_text())[name] for name, path in paths.items() if path.is_file()
    }


def tables() -> Iterator[str]:
    """The two tables of docs/speed.md as Markdown, line by line."""
    measured_tables = results(TABLES)
    if not measured_tables:
        return
    if "service" in measured_tables:
        yield from peers(measured_tables["service"]["rows"])
    yield "| what | measured | by |"
    yield "|---|---|---|"
    for name in measured_tables:
        for what, measured in TABLES[name](measured_tables[name]):
            yield f"| {what} | {measured} | `tests/bench/bench_{name}.py` |"


def feedback() -> Iterator[str]:
    """What a feedback stream takes beside others: the table of docs/feedback.md."""
    rows = results(["feedback"]).get("feedback", [])
    if not rows:
        return
    ratios = [row for row in rows if "ratio" in row]
    cells = {(row["table"], row.get("format") or row["where"], row["K"]): row for row in ratios}
    yield "| | K = 10 | K = 100 |"
    yield "|---|--:|--:|"
    for table, kind, what in FEEDBACK:
        row = [_ratio(cells.get((table, kind, actions))) for actions in (10, 100)]
        yield f"| {what} | {' | '.join(row)} |"


FEEDBACK = (
    ("throughput", "json", "records a second ÷ aiokafka alone, JSON, 1,000 keys"),
    ("throughput", "float32", "the same, float32"),
    ("many keys", "json", "processor time ÷ a stream of losses, JSON, 100,000 keys"),
    ("many keys", "float32", "the same, float32"),
    ("memory", "in memory", "bytes a key in memory ÷ a stream of losses"),
    ("memory", "saved", "bytes a key in the state ÷ a stream of losses"),
)


def _ratio(row: Mapping[str, Any] | None) -> str:
    """A ratio, and what belongs to it: a size, or the same ratio for each processor second."""
    if row is None:
        return "–"
    second_input = f"{row['feedback']:,} B" if "feedback" in row else ""
    second_input = (
        f"{row['per CPU']:.2f} per processor second" if "per CPU" in row else second_input
    )
    return f"{row['ratio']:.2f}" + (f" ({second_input})" if second_input else "")


PAGES: dict[str, Callable[[], Iterator[str]]] = {
    "docs/speed.md": tables,
    "docs/feedback.md": feedback,
}


def main() -> None:
    """Print the tables, or put them into their pages."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--write", action="store_true", help="put them into their pages")
    write = parser.parse_args().write
    for name, lines in PAGES.items():
        text = "\n".join(lines())
        if not write:
            print(text)
        elif text:
            page = ROOT / name
            before, _, rest = page.read_text().partition(BEGIN)
            _, _, after = rest.partition(END)
            page.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}")


if __name__ == "__main__":
    main()
