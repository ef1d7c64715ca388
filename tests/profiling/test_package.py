import pytest
from capturing import fresh_python


def test_importing_the_package_and_its_command_line_does_not_import_torch() -> None:
    modules = "commtrace.cli, commtrace.profiling.train.train_command, commtrace.profiling.base.run_directory"
    done = fresh_python("-c", f"import sys, {modules}; sys.exit('torch' in sys.modules)")
    assert done.returncode == 0, done.stderr


def test_standard_library_package_of_the_same_name_stays_importable(tmp_path) -> None:
    """Python 3.15 has a package `profiling`, with `tracing` in it, that cProfile imports."""
    other = tmp_path / "profiling"
    (other / "tracing").mkdir(parents=True)
    (other / "__init__.py").touch()
    (other / "tracing" / "__init__.py").write_text("Profile = 'from the standard library'")
    code = (
        "import profiling.tracing; from commtrace.profiling.base.run_directory import META_SUFFIX; "
        "print(profiling.tracing.Profile, META_SUFFIX)"
    )
    done = fresh_python("-c", code, folders=())
    assert done.returncode != 0  # without it there is no such module: the next lines show something
    done = fresh_python("-c", f"import sys; sys.path.append({str(tmp_path)!r}); {code}")
    assert done.stdout == "from the standard library .meta.json\n", done.stderr


def test_without_torchvision_train_says_what_to_install() -> None:
    code = "import sys; sys.modules['torchvision'] = None; from commtrace.cli import main; sys.exit(main(['train']))"
    done = fresh_python("-c", code)
    assert done.returncode == 1
    assert done.stderr.startswith("error: torchvision is not installed")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("statement", ["import commtrace.capture", "from commtrace.capture import capture"])
def test_capture_is_taken_for_a_module(statement: str) -> None:
    done = fresh_python(
        "-c", f"import commtrace\ntry:\n    {statement}\nfinally:\n    print(callable(commtrace.capture))"
    )
    assert "ImportError: commtrace.capture is a function: `import commtrace`, then `with " in done.stderr
    assert done.stdout == "True\n"
