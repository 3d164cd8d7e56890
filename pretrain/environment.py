"""What the machine's other packages may spoil, found out at start and said in one line.

`kernels` is our package and also the import name of a distribution on PyPI that transformers probes
for. Where that distribution is installed in a version that transformers accepts, transformers would
import from our package and die.
"""

import importlib.metadata

# transformers 5.24: KERNELS_MIN_VERSION <= version < KERNELS_MAX_VERSION.
REFUSED_KERNELS = ((0, 18, 2), (0, 19, 0))


def refuse_foreign_kernels() -> None:
    """Raise ValueError, naming the cure, where an installed `kernels` would collide with ours."""
    try:
        version = importlib.metadata.version("kernels")
    except importlib.metadata.PackageNotFoundError:
        return
    lowest, above = REFUSED_KERNELS
    if lowest <= _release(version) < above:
        raise ValueError(
            f"the distribution kernels {version} is installed, and transformers would take this "
            "repository's kernels/ for it. Use an environment without it, or run: "
            "python -m pip uninstall kernels"
        )


def _release(version: str) -> tuple[int, ...]:
    """The numbers of a version, its suffixes left off: "0.18.3.dev1" -> (0, 18, 3)."""
    numbers = []
    for part in version.split("+")[0].split("."):
        digits = ""
        for character in part:
            if not character.isdigit():
                break
            digits += character
        if not digits:
            break
        numbers.append(int(digits))
        if digits != part:
            break
    return tuple(numbers)
