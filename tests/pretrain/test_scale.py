"""scale.py: what is sent and how long it takes, in numbers that one can check by hand."""

from pathlib import Path

import pytest

from pretrain.__main__ import main
from pretrain.planning.gpus import GPUS
from pretrain.planning.rows import RowContent, glm_contents, mean_content
from pretrain.planning.scale import Fabric, ScaleRow, scale_row
from pretrain.settings.cli import parse_train
from pretrain.settings.config import Config

ROOT = Path(__file__).parents[2]
RECIPE = str(ROOT / "launch" / "recipes" / "glm_10b.yaml")
PARAMETERS = 9_880_682_496
FABRIC = Fabric(node_bytes_per_s=400e9, inside_bytes_per_s=450e9, usable=0.5, hop_s=1e-5)


@pytest.fixture(scope="module")
def recipe() -> tuple[Config, RowContent]:
    config, _ = parse_train(["--config", RECIPE, "--data.shards", "none"])
    return config, mean_content([(1.0, content) for _, content in glm_contents(config, None)])


def _row(
    recipe: tuple[Config, RowContent], gpus: int, changes: dict[str, int] | None = None
) -> ScaleRow:
    gpu = GPUS["h200"]
    return scale_row(*recipe, gpus=gpus, gpu=gpu, fabric=FABRIC, kernels=0.5, changes=changes)


def test_a_ring_passes_all_but_a_share_and_takes_a_moment_a_hop() -> None:
    # 8 GPUs of a node: 7/8 of 450 GB at 225 GB/s, and 3 calls of 7 hops of 10 us.
    assert FABRIC.ring_s(450e9, 8, calls=3) == pytest.approx(1.75 + 21e-5)
    # 16 of two nodes: 15/16 of 400 GB at 200 GB/s, which the node's cards carry together.
    assert FABRIC.ring_s(400e9, 16, calls=1) == pytest.approx(1.875 + 15e-5)
    assert FABRIC.ring_s(450e9, 1, calls=3) == 0


def test_what_is_sent_is_the_formula_of_zero(recipe: tuple[Config, RowContent]) -> None:
    row = _row(recipe, 64)
    assert (row.micro_rows, row.accumulation) == (5, 8)
    # Eight micro-batches of two gathers of 2 bytes and a sum of 4, 63/64 of them past each GPU.
    assert row.sent_bytes == pytest.approx(8 * 8 * PARAMETERS * 63 / 64, rel=1e-3)
    gathered = FABRIC.ring_s(2 * PARAMETERS, 64, calls=50)
    assert row.collectives.forward_s == pytest.approx(gathered, rel=1e-3)
    assert row.collectives.backward_s == row.collectives.forward_s
    assert row.collectives.reduce_s == pytest.approx(
        FABRIC.ring_s(4 * PARAMETERS, 64, calls=198), rel=1e-3
    )


def test_weights_kept_in_a_node_are_gathered_there_and_take_memory(
    recipe: tuple[Config, RowContent],
) -> None:
    plain, kept = _row(recipe, 64), _row(recipe, 64, {"second_partition": 8})
    inside = FABRIC.ring_s(2 * PARAMETERS, 8, calls=50)
    assert kept.collectives.backward_s == pytest.approx(inside, rel=1e-3)
    assert kept.collectives.forward_s == plain.collectives.forward_s
    added = kept.memory_bytes - plain.memory_bytes
    assert added == pytest.approx(1.05 * 2 * PARAMETERS / 8, rel=1e-3)  # 5 % for fragments


def test_utilisation_lies_between_all_hidden_and_nothing(
    recipe: tuple[Config, RowContent],
) -> None:
    alone, many = _row(recipe, 1), _row(recipe, 1024)
    assert alone.utilisation == (pytest.approx(0.5), pytest.approx(0.5))  # nothing is sent
    hidden, bare = many.utilisation
    compute_s, sending_s = many.compute_s, many.collectives.total_s
    assert sending_s > compute_s
    assert hidden == pytest.approx(0.5 * compute_s / sending_s)
    assert bare == pytest.approx(0.5 * compute_s / (compute_s + sending_s))
    assert many.global_rows == 5120  # 2560 rows are no whole number a GPU


def test_the_table_of_the_documentation_is_what_the_command_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (ROOT / "docs" / "scale.md").read_text(encoding="utf-8")
    (command,) = (line.split() for line in page.splitlines() if "-m pretrain plan" in line)
    monkeypatch.chdir(tmp_path)  # where there are no shards to count rows in
    main([RECIPE if word == "launch/recipes/glm_10b.yaml" else word for word in command[3:]])
    assert page.split("\n---\n")[1].strip() == capsys.readouterr().out.strip()


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--gpus", "0"), "must be above 0"),
        (("--gpus", "8", "--kernels", "2"), r"--kernels must lie in \(0, 1\], got 2"),
        ((), "the following arguments are required: --gpus"),
    ],
)
def test_a_mistake_is_one_line(
    flags: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["plan", "--scale", "--config", RECIPE, *flags])
    assert ended.value.code == 2
    assert said.replace("\\", "") in capsys.readouterr().err
