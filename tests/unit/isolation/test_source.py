"""Protects what the source scan finds and what it lets pass: each way around a switch has one line
here that does it, and each has an honest neighbour."""

from __future__ import annotations

from pathlib import Path

import pytest
import zoo_records as zoo

from fasttrack.isolation.source import Scan, scan
from fasttrack.schema import Claim


def read(folder: Path, claim: Claim | None = None, **files: str) -> Scan:
    """Scan of a package `mine`; `a__b` is the file `mine/a/b.py`."""
    for name, text in {"__init__": "", **files}.items():
        path = folder / "mine" / f"{name.replace('__', '/', 1) if name[0] != '_' else name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    for package in folder.glob("mine/*/"):
        (package / "__init__.py").touch()
    paths = [path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()]
    return scan(folder, paths, claim or zoo.claim())


def found(folder: Path, **files: str) -> list[tuple[str, str, str]]:
    """(code, path:line, what) of every finding."""
    return [(f.code, f.where, f.what) for f in read(folder, **files).findings]


IMPORT = {
    "thread": "import threading\nthreading.Thread(target=print).start()",
    "program": "import subprocess\nsubprocess.run(['true'])",
    "shell": "from os import system as s\ns('true')",
    "file": "open('/tmp/x', 'w')",
    "path": "from pathlib import Path\nPath('/tmp/x').write_text('')",
    "network": "import socket\nsocket.create_connection(('h', 1))",
    "hook": "import atexit\natexit.register(print)",
    "device": "import torch\nN = torch.cuda.get_device_capability()",
    "engine": "from vllm import ModelRegistry\nX = ModelRegistry.get_supported_archs()",
    "in_a_class": "import os\nclass C:\n    os.mkdir('x')",
    "in_a_default": "import os\ndef f(x=os.mkdir('x')): ...",
    "in_a_decorator": "from vllm.model_executor.custom_op import CustomOp\n"
    "@CustomOp.register('x')\nclass C: ...",
    "in_a_branch": "import os\ntry:\n    os.mkdir('x')\nexcept OSError:\n    pass",
    "through_own_function": "import os\ndef f():\n    os.mkdir('x')\nf()",
    "through_own_class": "import os\nclass C:\n    def __init__(self):\n        os.mkdir('x')\nC()",
    "exec": "def f(text):\n    exec(text)",
    "dynamic": "import importlib\ndef f(name):\n    importlib.import_module(name)",
    "a_test": "def f():\n    from mine.tests import helper",
    "a_test_by_name": "def f(load):\n    load('mine.tests.helper')",
    "syntax": "def f(:",
}
PATCH = {
    "attribute": "from vllm.v1.sample.sampler import Sampler\nSampler.forward = print",
    "late": "def on():\n    from vllm.v1.sample import sampler as s\n    s.Sampler.forward = print",
    "alias": "import vllm\ndef on():\n    S = vllm.v1.sample.sampler.Sampler\n    S.forward = 1",
    "setattr": "import vllm\ndef on():\n    setattr(vllm.v1, 'sample', None)",
    "getattr": "import vllm\ndef on():\n    getattr(vllm, 'v1').sample = None",
    "by_name": "import sys\ndef on():\n    sys.modules['vllm.v1.sample.sampler'].Sampler = None",
    "by_import": "import importlib as i\ndef on():\n    i.import_module('vllm.v1').sample = 1",
    "dict": "import vllm\ndef on():\n    vars(vllm)['LLM'] = None",
    "update": "import vllm\ndef on():\n    vllm.__dict__.update(LLM=None)",
    "delete": "import vllm\ndef on():\n    del vllm.LLM",
    "with": "import vllm\ndef on(x):\n    with x as vllm.LLM: ...",
    "tuple": "import vllm\ndef on(x):\n    (a, vllm.LLM) = x",
    "modules": "import sys\ndef on(x):\n    sys.modules['vllm.v1.sample'] = x",
    "finder": "import sys\ndef on(x):\n    sys.meta_path.insert(0, x)",
    "reload": "import importlib, vllm\ndef on():\n    importlib.reload(vllm)",
    "builtin": "import builtins\ndef on(x):\n    builtins.open = x",
    "registry": "from vllm.x import TABLE\ndef on(x):\n    TABLE['LlamaForCausalLM'] = x",
    "other_model": "from vllm import ModelRegistry\ndef on(x):\n"
    "    ModelRegistry.register_model('LlamaForCausalLM', x)",
    "code": "def on(f, g):\n    f.__code__ = g.__code__",
    "globals": "def on(f, g):\n    f.__globals__['x'] = g",
    "frames": "import sys\ndef on():\n    sys._getframe(1).f_locals",
    "objects": "import gc\ndef on():\n    return gc.get_objects()",
    "mock": "from unittest import mock\ndef on():\n    mock.patch('vllm.LLM').start()",
    "pointer": "import ctypes\ndef on():\n    ctypes.pythonapi.PyCell_Set(1, 2)",
}
ENV = {
    "item": "import os\ndef on():\n    os.environ['VLLM_X'] = '1'",
    "alias": "from os import environ\ndef on():\n    environ['VLLM_X'] = '1'",
    "or": "import os\ndef on():\n    os.environ |= {'X': '1'}",
    "default": "import os\nos.environ.setdefault('X', '1')",
    "pop": "import os\ndef on():\n    os.environ.pop('X')",
    "delete": "import os\ndef on():\n    del os.environ['X']",
    "putenv": "import os\ndef on():\n    os.putenv('X', '1')",
    "vllm": "import vllm.envs as envs\ndef on():\n    envs.VLLM_X = True",
    "folder": "import os\ndef on():\n    os.chdir('/')",
    "signal": "import signal\ndef on(f):\n    signal.signal(2, f)",
    "logging": "import logging\nlogging.basicConfig()",
    "undone_elsewhere": "import os\ndef on():\n    os.environ['X'] = '1'\n"
    "def off():\n    try: ...\n    finally:\n        os.environ.pop('X')",
}
TORCH = {
    "threads": "import torch\ndef on():\n    torch.set_num_threads(8)",
    "at_import": "import torch\ntorch.set_default_dtype(torch.bfloat16)",
    "assigned": "import torch\ndef on():\n    torch.backends.cuda.matmul.allow_tf32 = True",
    "from": "from torch.backends import cudnn\ndef on():\n    cudnn.benchmark = True",
    "setattr": "import torch\ndef on():\n    setattr(torch.backends.cudnn, 'benchmark', True)",
    "precision": "from torch import set_float32_matmul_precision as f\ndef on():\n    f('high')",
    "deterministic": "import torch\ndef on():\n    torch.use_deterministic_algorithms(False)",
    "seed": "import torch\ndef on():\n    torch.manual_seed(0)",
    "compiler": "import torch._inductor.config as c\ndef on():\n    c.max_autotune = True",
    "operator": "import torch\ndef on():\n    torch.library.Library('aten', 'IMPL')",
    "kernel": "import torch\ndef on(f):\n    torch.library.impl('aten::mm', 'CPU', f)",
    "hook": "from torch.nn.modules.module import register_module_forward_hook as h\n"
    "def on(f):\n    h(f)",
}
PLANTED = [
    pytest.param(code, text, id=f"{code}-{name}")
    for code, group in (("ISO-IMPORT", IMPORT), ("ISO-PATCH", PATCH), ("ISO-ENV", ENV),
                        ("ISO-TORCH", TORCH))
    for name, text in group.items()
]  # fmt: skip


@pytest.mark.parametrize(("code", "text"), PLANTED)
def test_a_planted_line_is_found(tmp_path: Path, code: str, text: str) -> None:
    made = found(tmp_path, ops=text, tests__helper="")
    assert {one[0] for one in made} == {code}, made
    assert all(where.startswith("mine/ops.py:") and what for _, where, what in made)


HONEST = {
    "definitions": "import logging, os, re\nfrom dataclasses import dataclass, field\n"
    "from functools import cache\nfrom pathlib import Path\n"
    "LOG = logging.getLogger(__name__)\nHERE = Path(__file__).parent\nRE = re.compile('x')\n"
    "MODE = os.environ.get('MODE', 'x')\nTABLE = {n: n * 2 for n in range(4)}\n"
    "@dataclass(frozen=True)\nclass A:\n    x: list[int] = field(default_factory=list)\n"
    "@cache\ndef f(): return A()\nALL = tuple(sorted(TABLE))\nONE = f()\nONE.x.append(1)\n",
    "reads_a_file": "from pathlib import Path\nTEXT = open(__file__).read()\n"
    "DATA = Path(__file__).read_text()\n",
    "script": "import os, torch\ndef main():\n    ...\n"
    "if __name__ == '__main__':\n    os.mkdir('x')\n    main()\n",
    "typing": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import vllm\n",
    "kernels": "import torch, triton\nfrom torch import Tensor\n"
    "@triton.jit\ndef k(x): ...\n@torch.no_grad()\ndef g(x): return x\n"
    "@torch.library.custom_op('mine::add', mutates_args=())\ndef add(x: Tensor) -> Tensor: ...\n",
    "registers_its_model": "ARCH = 'ZooForCausalLM'\ndef register():\n"
    "    from vllm import ModelRegistry\n    from vllm.models import config as c\n"
    "    ModelRegistry.register_model(ARCH, 'mine.model:Zoo')\n"
    "    c.TABLE.setdefault(ARCH, object)\n    c.TABLE[ARCH] = object\n",
    "works_when_called": "import os, subprocess, threading\ndef build():\n"
    "    os.makedirs('x', exist_ok=True)\n    subprocess.run(['true'])\n"
    "    threading.Thread(target=print).start()\n    open('x', 'w').write('')\n",
    "own_objects": "import torch\nclass Layer(torch.nn.Module):\n"
    "    def __init__(self, vllm_config):\n        super().__init__()\n"
    "        self.weight = torch.nn.Parameter(torch.empty(2))\n"
    "        vllm_config.compilation_config.static_forward_context['x'] = self\n"
    "        torch.add(self.weight, 1)\n",
    "flag_in_a_context": "import torch\nfrom contextlib import contextmanager\n@contextmanager\n"
    "def one_thread():\n    before = torch.get_num_threads()\n    torch.set_num_threads(1)\n"
    "    try:\n        yield\n    finally:\n        torch.set_num_threads(before)\n",
    "flag_in_a_class": "import torch\nclass Exact:\n    def __enter__(self):\n"
    "        self.was = torch.backends.cudnn.benchmark\n"
    "        torch.backends.cudnn.benchmark = False\n    def __exit__(self, *_):\n"
    "        torch.backends.cudnn.benchmark = self.was\n",
    "flag_in_a_with": "import torch\ndef run(x):\n"
    "    with torch.backends.cudnn.flags(enabled=True):\n        return x\n"
    "def grad(x):\n    with torch.set_grad_enabled(False):\n        return x\n",
    "variable_set_back": "import os\ndef run(f):\n    os.environ['X'] = '1'\n    try:\n"
    "        f()\n"
    "    finally:\n        del os.environ['X']\n",
    "environment_of_a_child": "import os, subprocess\ndef run():\n"
    "    env = os.environ | {'X': '1'}\n    env['Y'] = '2'\n    subprocess.run(['x'], env=env)\n",
    "shadowed_name": "import torch\ndef f(torch):\n    torch.x = 1\n",
}  # fmt: skip


@pytest.mark.parametrize("text", HONEST.values(), ids=HONEST)
def test_an_honest_file_passes(tmp_path: Path, text: str) -> None:
    assert found(tmp_path, ops=text) == []


def test_a_finding_names_the_line(tmp_path: Path) -> None:
    text = "import torch\n\n\ndef on():\n    torch.set_num_threads(8)\n"
    assert found(tmp_path, ops=text) == [("ISO-TORCH", "mine/ops.py:5", "torch.set_num_threads")]


def test_calls_are_followed_into_other_files(tmp_path: Path) -> None:
    files = {
        "ops": "from mine.setup import prepare\nprepare()\n",
        "setup": "from mine.disk import make as prepare\n",
        "disk": "import os\n\ndef make():\n    os.mkdir('x')\n",
    }
    assert found(tmp_path, **files) == [
        ("ISO-IMPORT", "mine/ops.py:2", "os.mkdir in mine.disk.make")
    ]


def test_recursion_at_import_ends(tmp_path: Path) -> None:
    assert found(tmp_path, ops="def f(n):\n    return n and f(n - 1)\nf(3)\n") == []


@pytest.mark.parametrize(
    "content",
    [b"\xff\xfe", b"x = 1\0", b"x = " + b"-" * 5000 + b"1", b"x = " + b"+".join([b"y"] * 5000)],
    ids=["no_text", "null", "nested", "long_chain"],
)
def test_a_file_that_cannot_be_read_is_a_finding(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "odd.py").write_bytes(content)
    made = read(tmp_path)
    assert [(f.code, f.where) for f in made.findings] == [("ISO-IMPORT", "mine/odd.py:1")]
    assert "nothing is known" in made.findings[0].why


def test_tests_are_not_read_and_told(tmp_path: Path) -> None:
    made = read(tmp_path, ops="", tests__test_ops="import os\nos.environ['X'] = '1'\n")
    assert not made.findings
    assert made.tests == ("mine/tests/__init__.py", "mine/tests/test_ops.py")
    assert made.read == ("mine/__init__.py", "mine/ops.py")


def test_a_file_cannot_pose_as_the_engine_s(tmp_path: Path) -> None:
    """A package of the optimization that is called `vllm` makes vLLM no property of its author."""
    path = tmp_path / "vendor" / "vllm" / "__init__.py"
    path.parent.mkdir(parents=True)
    path.write_text("")
    text = "import vllm\n\ndef on():\n    vllm.LLM = None\n"
    assert [code for code, _, _ in found(tmp_path, ops=text)] == ["ISO-PATCH"]


def test_in_a_checkout_the_scanned_files_are_own(tmp_path: Path) -> None:
    for name in ("vllm/__init__.py", "vllm/models/__init__.py", "vllm/models/k3.py"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    text = "from vllm.models import k3\nimport vllm\nk3.X = 1\nvllm.LLM = None\n"
    (tmp_path / "vllm" / "models" / "k3.py").write_text(text)
    made = scan(tmp_path, ["vllm/models/k3.py"], zoo.claim())
    assert [(f.code, f.where) for f in made.findings] == [("ISO-PATCH", "vllm/models/k3.py:4")]


@pytest.mark.parametrize("name", ["sitecustomize.py", "mine.pth"])
def test_what_python_runs_by_itself_is_found(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("")
    assert [(code, what) for code, _, what in found(tmp_path)] == [("ISO-IMPORT", name)]


def test_an_entry_point_beside_the_claimed_one_is_found(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(
        '[project.entry-points."vllm.general_plugins"]\nzoo = "mine:f"\nmore = "mine:g"\n'
        '[project.entry-points."vllm.platform_plugins"]\nzoo = "mine:h"\n'
        '[project.entry-points."fasttrack.cases"]\nzoo = "mine:i"\n'
    )
    plugin = {"distribution": "zoo", "module": "mine", "vllm_plugins": ["zoo"]}
    made = read(tmp_path, zoo.claim(plugin=plugin))
    assert [(f.code, f.what) for f in made.findings] == [
        ("ISO-PATCH", "vllm.general_plugins: more"),
        ("ISO-PATCH", "vllm.platform_plugins: zoo"),
    ]


def test_an_exemption_is_by_code_file_and_name(tmp_path: Path) -> None:
    text = "import os, torch\ndef on():\n    torch.set_num_threads(8)\n    os.chdir('/')\n"
    why = "The script is a process of its own."

    def exempt(**fields: str) -> list[str]:
        one = {"code": "ISO-TORCH", "path": "mine/*", "why": why, **fields}
        made = read(tmp_path, zoo.claim(isolation={"exempt": [one]}), ops=text)
        return [f.exempt for f in made.findings]

    assert exempt() == [why, ""]
    assert exempt(what="torch.set_*") == [why, ""]
    assert exempt(what="torch.seed") == ["", ""]
    assert exempt(path="other/*") == ["", ""]
    assert exempt(code="ISO-ENV") == ["", why]
