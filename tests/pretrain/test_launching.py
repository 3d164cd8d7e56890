"""launching.py, network.py: a start that is not what was asked for ends at once."""

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from pretrain.distributed import network
from pretrain.distributed.launching import check_launch, missing_hostfile


@pytest.mark.parametrize(
    ("started", "expected", "said"),
    [
        (1, 16, "expected_ranks is 16, but the launcher started 1 rank. Look at its hostfile"),
        (3, 2, "expected_ranks is 2, but the launcher started 3 ranks. "),
        (2, 2, None),
        (2, None, None),
    ],
)
def test_another_number_of_ranks_is_refused(
    started: int, expected: int | None, said: str | None
) -> None:
    if said is None:
        check_launch(started, expected, ())
        return
    with pytest.raises(ValueError, match=said):
        check_launch(started, expected, ())


@pytest.mark.parametrize(
    ("arguments", "missing"),
    [
        (["--hostfile", "nowhere", "launch/pretrain_glm.sh"], "nowhere"),
        (["--hostfile=nowhere", "launch/pretrain_glm.sh"], "nowhere"),
        (["-H", "nowhere", "launch/pretrain_glm.sh"], "nowhere"),
        (["--hostfile", "HOSTS", "launch/pretrain_glm.sh"], None),
        (["--hostfile", "/dev/null", "launch/pretrain_glm.sh"], None),
        (["--num_gpus", "2", "launch/pretrain_glm.sh", "--hostfile", "nowhere"], None),
    ],
)
def test_a_hostfile_that_deepspeed_did_not_find_is_known(
    arguments: list[str], missing: str | None, tmp_path: Path
) -> None:
    (tmp_path / "HOSTS").write_text("host0 slots=1\n")
    (tmp_path / "deepspeed").write_text("print(flush=True)\ninput()\n")
    launcher = subprocess.Popen(
        [sys.executable, str(tmp_path / "deepspeed"), *arguments],
        cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    try:
        assert launcher.stdout and launcher.stdout.readline()  # it runs
        assert missing_hostfile(launcher.pid) == missing
        if missing:
            with pytest.raises(ValueError, match="there is no hostfile nowhere"):
                check_launch(1, None, (0, launcher.pid))
    finally:
        launcher.kill()
        launcher.communicate()


def test_another_launcher_has_no_hostfile() -> None:
    assert missing_hostfile(0) is None  # no such process
    with subprocess.Popen([sys.executable, "-c", "input()", "--hostfile", "nowhere"],
                          stdin=subprocess.PIPE) as other:  # fmt: skip
        assert missing_hostfile(other.pid) is None
        other.kill()


def test_gloo_gets_the_interface_that_leads_to_rank_0(monkeypatch: pytest.MonkeyPatch) -> None:
    own = [("eth7", "127.0.0.1"), ("lo", "127.0.0.9")]
    addresses = {n: [SimpleNamespace(address=a)] for n, a in own}
    monkeypatch.setattr(psutil, "net_if_addrs", lambda: addresses)
    for name in (network.GLOO, network.NCCL, network.ASYNC_ERROR_HANDLING[0]):
        monkeypatch.setenv(name, "")  # what was not there goes again with the test
        monkeypatch.delenv(name)
    assert network.interface_to("127.0.0.1") is None  # loopback needs no name
    assert network.interface_to("no.such.host.invalid") is None
    monkeypatch.setattr(network, "interface_to", lambda _: "eth7")
    network.set_variables(None, "10.0.0.1")
    environ = network.os.environ
    assert (environ[network.GLOO], environ.get(network.NCCL)) == ("eth7", None)
    assert environ["TORCH_NCCL_ASYNC_ERROR_HANDLING"] == "3"
    monkeypatch.setenv(network.GLOO, "eth1")  # what the user says stays
    network.set_variables(None, "10.0.0.1")
    assert environ[network.GLOO] == "eth1"
    network.set_variables("lo", "10.0.0.1")  # but for the recipe
    assert (environ[network.GLOO], environ[network.NCCL]) == ("lo", "lo")
    monkeypatch.delenv(network.NCCL)
    with pytest.raises(ValueError, match="has no ib0; it has eth7, lo"):
        network.set_variables("ib0", "10.0.0.1")


def test_waiting_for_ever_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0")
    with pytest.raises(ValueError, match="would let ranks wait for a lost one for ever"):
        network.set_variables(None, "localhost")


def test_infiniband_is_named_with_its_rate(tmp_path: Path) -> None:
    port = tmp_path / "mlx5_0" / "ports" / "1"
    port.mkdir(parents=True)
    (port / "rate").write_text("400 Gb/sec (4X NDR)\n")
    (tmp_path / "mlx5_1").mkdir()
    assert network.infiniband(tmp_path) == ["mlx5_0 (400 Gb/sec (4X NDR))", "mlx5_1"]
    assert network.infiniband(tmp_path / "none") == []
