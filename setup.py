"""The one thing pyproject.toml cannot say: the zoo of `tests/zoo` travels inside the wheel.

`fasttrack self-test` and every full run judge it, so an installation needs it; it stays with the
tests because that is where it is read and changed. Test modules are left behind.
"""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

ZOO = Path(__file__).parent / "tests" / "zoo"


class WithZoo(build_py):
    """Copies the zoo to `fasttrack/_zoo` of what is built; an editable build needs no copy."""

    def run(self) -> None:
        super().run()
        if not self.editable_mode and ZOO.is_dir():
            target = Path(self.build_lib) / "fasttrack" / "_zoo"
            unwanted = shutil.ignore_patterns("__pycache__", "test_*.py", "conftest.py")
            shutil.copytree(ZOO, target, ignore=unwanted, dirs_exist_ok=True)
            for name in ("bundle_maker.py", "fuzz.py"):
                (target / "reject").mkdir(exist_ok=True)
                shutil.copy(ZOO.parent / "reject" / name, target / "reject" / name)


setup(cmdclass={"build_py": WithZoo})
