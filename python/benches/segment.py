"""Draws what is in a segment, with the sizes of a real one.

    python python/benches/segment.py --picture docs/images/segment.svg

Where a piece lies and how large it is follows from the directory entry in the file and the tables of shm-layout.md. The
pieces have to add up to what the entry says.
"""

from __future__ import annotations

import re
import tempfile
from dataclasses import dataclass
from pathlib import Path

import chart

import shmlimit as sl

LAYOUT = (Path(__file__).parents[2] / "shm-layout.md").read_text()
SETS = (
    sl.LimitSet(
        "model", [sl.Rate("tokens", 200_000, "60s", algorithm="token_bucket"), sl.Concurrency("in_flight", 16)]
    ),
    sl.LimitSet(
        "tenants",
        [sl.Calls("requests", 500, "60s", algorithm="gcra"), sl.Concurrency("in_flight", 4)],
        keyed=10_000,
        labels=True,
    ),
)
ROW_HEIGHT, TOP = 34, 44
COLOURS = {"fixed": "#8882", "lock": "#c2410c33", "journal": "#a1620733", "state": "#1d4ed833", "held": "#15803d33"}


@dataclass(frozen=True)
class Piece:
    """A piece of the segment: its name, what it is for, its bytes, and how it is coloured."""

    name: str
    purpose: str
    size: int
    colour: str = "fixed"


def size_of(record: str) -> int:
    """The size of a record, by the heading of its table."""
    [size] = re.findall(rf"^### `{record}`: (\d+) bytes$", LAYOUT, re.MULTILINE)
    return int(size)


def constant(name: str) -> int:
    """A constant of the layout."""
    [value] = re.findall(rf"^\| `{name}` \| (\d+) \|", LAYOUT, re.MULTILINE)
    return int(value)


def read(file: bytes, record: str, at: int = 0) -> dict[str, int]:
    """The words of a record in a file, by their names; of fields with several words, the first."""
    [table] = re.findall(rf"^### `{record}`: .*?(?=^### |\Z)", LAYOUT, re.MULTILINE | re.DOTALL)
    fields = re.findall(r"^\| (\d+) \| \d+ \| `(\w+)` \|", table, re.MULTILINE)
    return {name: int.from_bytes(file[at + int(offset) :][:8], "little") for offset, name in fields}


def aligned(size: int) -> int:
    """The size, rounded up as everything in a segment is."""
    unit = constant("ALIGNMENT")
    return -(-size // unit) * unit


def pieces(file: bytes) -> tuple[list[Piece], list[Piece], list[Piece]]:
    """The pieces of the file, of its last set, and of a shard of that set."""
    header = read(file, "Header")
    entries = [
        read(file, "DirectoryEntry", header["directory_offset"] + number * size_of("DirectoryEntry"))
        for number in range(header["sets"])
    ]
    entry = entries[-1]
    rows = entry["buckets"] * constant("BUCKET_ROWS")
    row = aligned(size_of("KeyRow") + 8 * entry["state_words"])
    hold = aligned(size_of("Hold") + 8 * entry["held_amounts"])
    ticket = aligned(size_of("Ticket") + 24 * entry["limits"])
    shard = [
        Piece("control", "the lock; counters; heads of the queues", size_of("SetControl"), "lock"),
        Piece(
            f"journal: {constant('JOURNAL_ENTRIES')} entries",
            "words as they were, to undo what a dead process left",
            constant("JOURNAL_ENTRIES") * size_of("JournalEntry"),
            "journal",
        ),
        Piece(
            f"counters: {entry['limits']} limits",
            "admitted, refused, given back: of each limit",
            entry["limits"] * size_of("LimitCounters"),
        ),
        Piece(f"tags: {entry['buckets']} buckets", "find the row of a key", entry["buckets"] * 64, "state"),
        Piece(
            f"rows: {rows:,} of {row} bytes", "a key's fingerprint, and the state of its limits", rows * row, "state"
        ),
        Piece(f"names: {rows:,}", "keys as people read them", rows * entry["name_words"] * 8),
        Piece(
            f"holds: {entry['holds']:,} of {hold} bytes",
            "what a permit gives back, and which process has it",
            entry["holds"] * hold,
            "held",
        ),
        Piece(f"labels: {entry['labels']:,}", "what each hold is for", aligned(entry["labels"] * size_of("HoldLabel"))),
        Piece(
            f"tickets: {entry['tickets']:,} of {ticket} bytes",
            "the requests that wait, in their order",
            entry["tickets"] * ticket,
            "held",
        ),
    ]
    of_shard = sum(piece.size for piece in shard)
    texts = 2 * aligned(entry["definition_room"])
    assert texts + entry["shards"] * of_shard == entry["extent_size"], "shm-layout.md says where everything is"
    extent = [
        Piece("definition, twice", "TOML: in force, and the next", texts),
        Piece("shard 0", "the keys that belong to it", of_shard, "state"),
        Piece(f"shards 1 to {entry['shards'] - 1}", "the same, for the other keys", (entry["shards"] - 1) * of_shard),
    ]
    whole = [
        Piece("header", "format, clock, boot", header["participants_offset"]),
        Piece(
            f"participants: {header['participants']}",
            "a slot for each process",
            header["directory_offset"] - header["participants_offset"],
        ),
        Piece(
            f"directory: {header['sets']} sets",
            "where each set lies",
            entries[0]["extent_offset"] - header["directory_offset"],
        ),
        *(
            Piece(f'set "{each.name}"', "without keys", entry["extent_size"])
            for each, entry in zip(SETS, entries, strict=True)
        ),
    ]
    assert sum(piece.size for piece in whole) == header["total_size"] == len(file)
    whole[-1] = Piece(whole[-1].name, "with keys", whole[-1].size, "state")
    return whole, extent, shard


def column(left: float, width: float, title: str, shown: list[Piece]) -> list[str]:
    """A column of pieces below each other, which are not drawn to scale."""
    lines = [f'<text x="{left:g}" y="{TOP - 14}" font-weight="bold">{title}</text>']
    for number, piece in enumerate(shown):
        y = TOP + number * ROW_HEIGHT
        lines += [
            f'<rect x="{left:g}" y="{y}" width="{width:g}" height="{ROW_HEIGHT}" '
            f'fill="{COLOURS[piece.colour]}" stroke="#888"/>',
            f'<text x="{left + 8:g}" y="{y + 14}" font-weight="bold">{piece.name}</text>',
            f'<text x="{left + width - 8:g}" y="{y + 14}" text-anchor="end">{piece.size:,}</text>',
            f'<text x="{left + 8:g}" y="{y + 28}">{piece.purpose}</text>',
        ]
    return lines


def opens(left: float, row: int, right: float, rows: int) -> list[str]:
    """Lines from a piece to the column that shows what is in it."""
    ends = ((row, 0), (row + 1, rows))
    return [
        f'<path d="M{left:g} {TOP + from_row * ROW_HEIGHT}L{right:g} {TOP + to_row * ROW_HEIGHT}" '
        'stroke="#888" stroke-dasharray="3 3"/>'
        for from_row, to_row in ends
    ]


def picture() -> str:
    """The file, a set in it, and a shard of the set, from left to right."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as directory:
        path = Path(directory) / "picture.limits"
        sl.open(path, list(SETS)).close()
        whole, extent, shard = pieces(path.read_bytes())
    lines = [
        *column(10, 210, f"the file: {sum(piece.size for piece in whole):,} bytes", whole),
        *opens(220, len(whole) - 1, 280, len(extent)),
        *column(280, 230, f'set "{SETS[-1].name}"', extent),
        *opens(510, 1, 570, len(shard)),
        *column(570, 380, "a shard: what one lock guards", shard),
    ]
    return chart.picture(960, TOP + len(shard) * ROW_HEIGHT + 10, lines)


if __name__ == "__main__":
    chart.main(__doc__, picture)
