"""The picture of the demo's curves shows what metrics.jsonl holds."""

import json
from pathlib import Path

import pytest
from PIL import Image

from demo.curves import _smoothed, draw_curves


def test_the_mean_reaches_back_twenty_steps_and_no_further():
    values = [float(i) for i in range(40)]
    assert _smoothed(values)[:3] == [0.0, 0.5, 1.0]
    assert _smoothed(values)[-1] == pytest.approx(sum(range(20, 40)) / 20)


def test_a_kind_of_blank_without_targets_is_no_curve(tmp_path: Path):
    def colours(records: list[dict]) -> set:
        metrics, picture = tmp_path / "metrics.jsonl", tmp_path / "curves.png"
        metrics.write_text("".join(json.dumps(r) + "\n" for r in records))
        draw_curves(metrics, picture)
        image = Image.open(picture).convert("RGB")
        return {colour for _, colour in image.getcolors(1 << 20)}

    blue, orange = (31, 119, 180), (255, 127, 14)  # C0 and C1
    both = [{"step": n, "loss/glm_token_nats": 5.0, "loss/glm_document_nats": 6.0} for n in (1, 2)]
    alone = [{"step": n, "loss/glm_token_nats": 5.0} for n in (1, 2)]
    assert {blue, orange} <= colours(both)
    assert orange not in colours(alone)
    assert blue in colours(alone)
