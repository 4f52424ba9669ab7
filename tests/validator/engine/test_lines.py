"""Lines of any length, cut and mixed as `srun` does it."""

from __future__ import annotations

import random

from validator.engine.lines import Lines, packed


def test_short_lines_are_sent_as_they_are() -> None:
    assert packed("n1", b'{"is":"beat"}') == b'\n{"is":"beat"}\n'


def test_no_piece_is_longer_than_srun_passes_on_whole() -> None:
    assert max(len(piece) for piece in packed("n" * 64, b"{" + b"x" * 100_000).split(b"\n")) < 1024


def test_pieces_of_several_nodes_are_joined_by_node() -> None:
    """Whole pieces come in any order of the nodes, and the bytes of a channel in any portions."""
    chance = random.Random(7)
    lines = {node: b'{"node":"' + node.encode() + b'","data":"' + b"x" * 5_000 + b'"}' for node in ("n1", "n2", "n3")}
    queues = [packed(node, line).split(b"\n") for node, line in lines.items()]
    mixed = b""
    while any(queues):
        mixed += chance.choice([queue for queue in queues if queue]).pop(0) + b"\n"
    reader, found = Lines(), []
    while mixed:
        size = chance.randrange(1, 2_000)
        found += reader.take(mixed[:size])
        mixed = mixed[size:]
    assert sorted(found) == sorted(lines.values())


def test_what_a_killed_agent_left_costs_no_line_of_another_node() -> None:
    left = packed("n1", b"{" + b"x" * 3_000)[:1_500]
    found = Lines().take(left + packed("n2", b'{"is":"record"}'))
    assert found[-1] == b'{"is":"record"}'


def test_a_damaged_piece_costs_its_line_alone() -> None:
    whole = packed("n1", b"{" + b"x" * 3_000)
    damaged = whole[:950] + whole[960:]
    reader = Lines()
    assert reader.take(damaged) == []
    assert reader.take(whole) == [b"{" + b"x" * 3_000]


def test_words_that_no_agent_wrote_come_as_they_are() -> None:
    assert Lines().take(b"Welcome to host 7\n+ set -x\n.\n") == [b"Welcome to host 7", b"+ set -x", b"."]
