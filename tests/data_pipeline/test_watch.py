"""Progress in a log, and in few messages."""

import logging

from data_pipeline import watch


def test_a_log_tells_progress_every_half_minute(monkeypatch, caplog):
    now_s = iter([0.0, 10.0, 31.0, 40.0, 62.0])
    monkeypatch.setattr(watch.time, "monotonic", lambda: next(now_s))
    with caplog.at_level(logging.INFO), watch.logged(4_000_000_000) as on_bytes:
        for _ in range(4):
            on_bytes(310_000_000)
    assert caplog.messages == [
        "0.62 of 4.00 GB done, 20.0 MB/s",
        "1.24 of 4.00 GB done, 20.0 MB/s",
    ]


def test_lumps_hold_all_bytes():
    told: list[int] = []
    lumps = watch.InLumps(told.append, lump_bytes=10)
    for num_bytes in (4, 5, 6, 20, 3):
        lumps(num_bytes)
    lumps.flush()
    lumps.flush()
    assert told == [15, 20, 3]
