"""Small disks of our own: an ext4 image that can lose its power, and a disk that fills up. They need root.

What the machine had not written into the image when it was copied is lost with the power, as on a real disk whose
kernel dies: `commit=60` makes that a worst case for everything that was not synced.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


def need_mounts(tmp_path: Path) -> None:
    """Skip, saying why, where no loop disk can be mounted."""
    if os.geteuid() != 0 or shutil.which("mkfs.ext4") is None:
        pytest.skip("POWER CUT NOT TESTED: a loop disk needs root and mkfs.ext4")
    try:
        with mounted(image(tmp_path / "probe.img", mib=16), tmp_path / "probe"):
            pass
    except subprocess.CalledProcessError as error:
        pytest.skip(f"POWER CUT NOT TESTED: no loop disk can be mounted here: {error.stderr}")


def image(file: Path, *, mib: int) -> Path:
    """An empty ext4 disk in a file."""
    with file.open("wb") as made:
        made.truncate(mib << 20)
    _run("mkfs.ext4", "-q", "-F", str(file))
    return file


@contextmanager
def mounted(file: Path, at: Path) -> Iterator[Path]:
    """The disk, mounted; whatever happens it is unmounted again, and its loop device let go."""
    at.mkdir(exist_ok=True)
    _run("mount", "-o", "loop,commit=60", str(file), str(at))
    try:
        yield at
    finally:
        _unmount(at)


@contextmanager
def small_disk(at: Path, *, mib: int) -> Iterator[Path]:
    """A disk in memory that is soon full."""
    at.mkdir(exist_ok=True)
    _run("mount", "-t", "tmpfs", "-o", f"size={mib}m", "tmpfs", str(at))
    try:
        yield at
    finally:
        _unmount(at)


def copied(file: Path, to: Path) -> Path:
    """The image as it is at this moment: what the disk would have after a power cut."""
    _run("cp", "--sparse=always", str(file), str(to))
    return to


def _unmount(at: Path) -> None:
    """At once if nobody uses it, else as soon as nobody does."""
    if subprocess.run(["umount", str(at)], capture_output=True, check=False).returncode != 0:
        _run("umount", "--lazy", str(at))


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True)
