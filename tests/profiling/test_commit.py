"""The commit of the script, from repositories as git itself makes them."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from commtrace.profiling.machine.commit import commit_of

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="needs git")


def git(folder: Path, *arguments: str) -> str:
    who = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false")
    done = subprocess.run(["git", *who, *arguments], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "repository"
    (folder / "code").mkdir(parents=True)
    git(folder, "init", "-q", "-b", "main")
    git(folder, "commit", "-q", "--allow-empty", "-m", "first")
    git(folder, "commit", "-q", "--allow-empty", "-m", "second")
    return folder


def test_it_is_that_of_a_branch_wherever_the_script_lies(repository: Path) -> None:
    assert commit_of(repository / "code") == commit_of(repository) == git(repository, "rev-parse", "HEAD")


def test_packed_references_a_commit_without_a_branch_and_worktrees(repository: Path, tmp_path: Path) -> None:
    second = git(repository, "rev-parse", "HEAD")
    git(repository, "branch", "-q", "side/topic", "HEAD~1")
    git(repository, "pack-refs", "--all")
    assert commit_of(repository) == second
    git(repository, "worktree", "add", "-q", str(tmp_path / "tree"), "side/topic")
    assert commit_of(tmp_path / "tree") == git(repository, "rev-parse", "HEAD~1") != second
    git(repository, "checkout", "-q", "--detach", "HEAD~1")
    assert commit_of(repository) == git(repository, "rev-parse", "HEAD")


def test_it_is_not_known_without_a_repository_or_a_commit(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    assert commit_of(tmp_path) is None
    (tmp_path / ".git" / "HEAD").write_text("ref: refs/heads/../../../secret\n", encoding="utf-8")
    assert commit_of(tmp_path) is None
