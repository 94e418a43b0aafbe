"""Taking a partition: what is durable is checked before anything is believed.

Epoch, digest, that the ledger knows no commit that the checkpoint does not, and that the input from
`low_water` on is still there. Where they contradict each other the partition halts
(`StateMismatch`); it never resets an offset and never skips. The one way out of a halt is a larger
`epoch` in the configuration. `next_offset` never moves back, by any way (P11).
"""

from __future__ import annotations

from dataclasses import dataclass

from streamdp.core.errors import StateMismatch, complaint
from streamdp.ports import Partition, Taken
from streamdp.service.spec import Start, StreamSpec
from streamdp.wire.published import Charge, LedgerLine, decode_ledger
from streamdp.wire.state import Checkpoint, SavedState, read_state


@dataclass(frozen=True, slots=True)
class Opening:
    """What taking a partition found, and how it goes on."""

    position: int  # where the engine must arrive, and where new input begins
    low_water: int  # the first record that a rebuild reads
    commit_seq: int
    rows: int
    saved: SavedState
    new_epoch: int | None  # the epoch before this one, if this taking begins one


def open_partition(spec: StreamSpec, partition: Partition, taken: Taken) -> Opening:
    """Check what is durable, and say how the partition goes on; or halt."""
    saved = read_state(taken.state, stream=partition.stream, partition=partition.number)
    line = None if taken.last_ledger_line is None else decode_ledger(taken.last_ledger_line)
    if saved.checkpoint is None:
        return _without_checkpoint(spec, partition, taken, saved, line)
    checkpoint = saved.checkpoint
    if spec.epoch < checkpoint.epoch:
        raise _halt(partition, "epoch", f"{checkpoint.epoch} or a later one", spec.epoch)
    if spec.epoch > checkpoint.epoch:
        return Opening(
            position=max(checkpoint.next_offset, taken.first_offset),
            low_water=max(checkpoint.next_offset, taken.first_offset),
            commit_seq=max(checkpoint.commit_seq, line.commit_seq if line else 0),
            rows=0,
            saved=saved,
            new_epoch=checkpoint.epoch,
        )
    _check_continues(spec, partition, taken, checkpoint, line)
    return Opening(
        position=checkpoint.next_offset,
        low_water=checkpoint.low_water,
        commit_seq=checkpoint.commit_seq,
        rows=checkpoint.rows,
        saved=saved,
        new_epoch=None,
    )


def _check_continues(
    spec: StreamSpec,
    partition: Partition,
    taken: Taken,
    checkpoint: Checkpoint,
    line: LedgerLine | None,
) -> None:
    if spec.digest != checkpoint.digest:
        raise _halt(
            partition,
            "the configuration differs from the state's; a change of ε, actions, learner, format"
            " or estimates needs a new epoch",
            f"digest {checkpoint.digest}",
            spec.digest,
        )
    if line is not None and line.commit_seq > checkpoint.commit_seq:
        raise _halt(
            partition,
            "the state was rolled back: the ledger knows a later commit",
            f"at least commit {line.commit_seq}",
            checkpoint.commit_seq,
        )
    if taken.partitions < checkpoint.partitions:
        raise _halt(partition, "partitions went away", checkpoint.partitions, taken.partitions)
    if taken.first_offset > checkpoint.low_water:
        raise _halt(
            partition,
            "input that a rebuild needs is no longer retained",
            f"offset {checkpoint.low_water}",
            f"{taken.first_offset} as the oldest",
        )
    if taken.end_offset < checkpoint.next_offset:
        raise _halt(
            partition,
            "the input was cut back or replaced",
            f"an end at {checkpoint.next_offset} or later",
            taken.end_offset,
        )


def _without_checkpoint(
    spec: StreamSpec,
    partition: Partition,
    taken: Taken,
    saved: SavedState,
    line: LedgerLine | None,
) -> Opening:
    """A first start; or a state that was lost, which only a new epoch may pass."""
    if line is None and taken.group_offset is None:
        first = taken.first_offset if spec.start is Start.EARLIEST else taken.end_offset
        return Opening(first, first, 0, 0, saved, None)
    before = 1 if line is None else line.epoch
    if spec.epoch <= before:
        found = "a group offset" if line is None else f"a ledger line of commit {line.commit_seq}"
        raise _halt(
            partition,
            "the state is gone; going on needs a new epoch",
            f"a checkpoint, or epoch {before + 1}",
            found,
        )
    past = (
        0
        if line is None
        else line.last_offset + 1
        if isinstance(line, Charge)
        else line.next_offset
    )
    position = max(taken.first_offset, taken.group_offset or 0, past)
    return Opening(position, position, line.commit_seq if line else 0, 0, saved, before)


def _halt(partition: Partition, what: str, expected: object, got: object) -> StateMismatch:
    return StateMismatch(complaint(f"partition {partition}", what, expected=expected, got=got))
