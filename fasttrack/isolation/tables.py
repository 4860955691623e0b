"""Leaf, data only: what a file may call while it is imported, and what no code of it may change.

Names are dotted, as resolved by `names`; `*` stands for anything. A pattern comes with the sentence
that a finding tells.
"""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase

HARMLESS = (
    # Python itself: values, types and decorators. Reading the environment changes nothing.
    "abc.*", "base64.*", "bisect.*", "collections.*", "contextlib.*", "contextvars.*", "copy.*",
    "dataclasses.*", "datetime.*", "decimal.*", "enum.*", "fractions.*", "functools.*",
    "hashlib.*", "importlib.import_module", "importlib.metadata.*", "importlib.util.find_spec",
    "inspect.*", "itertools.*", "json.dumps", "json.loads", "logging.getLogger", "math.*",
    "operator.*", "os.environ.get", "os.getenv", "os.path.*", "os.cpu_count", "os.fspath",
    "pathlib.Path", "pathlib.PurePath", "pathlib.PurePosixPath", "platform.*", "re.*",
    "shutil.which",
    "struct.*", "sys.getsizeof", "textwrap.*", "threading.Lock", "threading.RLock",
    "threading.local", "types.*", "typing.*", "typing_extensions.*", "uuid.*", "weakref.*",
    "warnings.warn",
    # Tensors' vocabulary and decorators of own functions.
    "numpy.arange", "numpy.array", "numpy.dtype", "numpy.finfo", "numpy.float*", "numpy.int*",
    "pydantic.*",
    "torch.Size", "torch.compile", "torch.device", "torch.enable_grad", "torch.finfo",
    "torch.iinfo", "torch.inference_mode", "torch.no_grad", "torch.compiler.*",
    "torch.library.custom_op", "torch.library.register_fake", "torch.library.triton_op",
    "cutlass.*", "triton.*", "vllm.triton_utils.*",
    "vllm.logger.init_logger", "vllm.compilation.decorators.support_torch_compile",
)  # fmt: skip
"""Calls that importing a file may make. New operators in an own namespace are among them: the run
itself compares the engine's operators."""

LOUD_BUILTINS = frozenset({"breakpoint", "compile", "eval", "exec", "input", "open", "print"})
"""Of Python's built-in functions, those that reach outside; `open` for reading is harmless."""

LOUD_METHODS = frozenset(
    {"addHandler", "bind", "chmod", "connect", "listen", "mkdir", "rename", "rmdir", "send",
     "sendall", "start", "symlink_to", "system", "touch", "unlink", "write", "write_bytes",
     "write_text"}
)  # fmt: skip
"""Methods that reach outside whatever object they are called on."""

WHY_AT_IMPORT: Mapping[str, str] = {
    "threading.*": "starts a thread in every process that imports the plugin",
    "multiprocessing.*": "starts processes in every process that imports the plugin",
    "concurrent.*": "starts workers in every process that imports the plugin",
    "subprocess.*": "runs a program in every process that imports the plugin",
    "os.*": "acts on the operating system in every process that imports the plugin",
    "shutil.*": "touches files in every process that imports the plugin",
    "tempfile.*": "touches files in every process that imports the plugin",
    "socket.*": "opens the network in every process that imports the plugin",
    "urllib.*": "opens the network in every process that imports the plugin",
    "http.*": "opens the network in every process that imports the plugin",
    "atexit.*": "leaves a hook for the end of every process that imports the plugin",
    "builtins.open": "writes a file in every process that imports the plugin",
    "torch.cuda.*": "initialises a device in every process that imports the plugin",
    "vllm.*": "calls into the engine before anybody switched the optimization on",
    "*": "runs in every process that imports the plugin, switched on or not",
}

ENVIRONMENT: Mapping[str, str] = {
    "os.environ": "other code reads this variable",
    "os.putenv": "other code reads this variable",
    "os.unsetenv": "other code reads this variable",
    "vllm.envs.*": "the engine reads its settings here",
    "os.chdir": "the working directory belongs to the process",
    "os.umask": "the mask belongs to the process",
    "os.nice": "priority belongs to the process",
    "os.setpriority": "priority belongs to the process",
    "os.sched_setaffinity": "the choice of cores belongs to the process",
    "resource.setrlimit": "limits belong to the process",
    "locale.setlocale": "the locale belongs to the process",
    "signal.signal": "signal handlers belong to the process",
    "sys.set*": "a setting of the whole interpreter",
    "gc.disable": "garbage collection belongs to the process",
    "gc.freeze": "garbage collection belongs to the process",
    "gc.set_*": "garbage collection belongs to the process",
    "threading.settrace*": "a hook in every thread",
    "threading.setprofile*": "a hook in every thread",
    "threading.stack_size": "a setting of every new thread",
    "logging.basicConfig": "logging belongs to the engine",
    "logging.disable": "logging belongs to the engine",
    "logging.root.*": "logging belongs to the engine",
    "logging.setLoggerClass": "logging belongs to the engine",
    "warnings.filterwarnings": "filters of the whole process",
    "warnings.simplefilter": "filters of the whole process",
    "random.seed": "the generator belongs to the process",
    "numpy.random.seed": "the generator belongs to the process",
    "numpy.seterr": "a setting of the whole process",
}
"""Calls and assignments that change what the whole process sees."""

TORCH: Mapping[str, str] = {
    "torch.set_rng_state": "the generator belongs to every model in the process",
    "torch.manual_seed": "the generator belongs to every model in the process",
    "torch.seed": "the generator belongs to every model in the process",
    "torch.cuda.manual_seed*": "the generator belongs to every model in the process",
    "torch.set_grad_enabled": "gradients are switched for every model in the process",
    "torch.set_*": "a flag of every model in the process",
    "torch.use_deterministic_algorithms": "a flag of every model in the process",
    "torch.backends.*": "a flag of every model in the process",
    "torch._dynamo.config*": "a flag of every compilation in the process",
    "torch._inductor.config*": "a flag of every compilation in the process",
    "torch._functorch.config*": "a flag of every compilation in the process",
    "torch._C._set_*": "a flag of every model in the process",
    "torch.autograd.set_*": "a flag of every model in the process",
    "torch.cuda.set_per_process_memory_fraction": "memory is shared with the engine",
    "torch.cuda.memory.change_current_allocator": "the allocator belongs to the engine",
    "torch.cuda.memory.set_per_process_memory_fraction": "memory is shared with the engine",
    "torch.nn.modules.module.register_module_*": "a hook in every module of every model",
    "torch.overrides.*": "changes what operators do for every model",
    "torch.utils.deterministic.*": "a flag of every model in the process",
}
"""Settings of torch; read-only members of these groups are in `TORCH_READS`."""

TORCH_READS = (
    "torch.backends.*.is_*", "torch.backends.*.*_enabled", "torch.backends.*.version",
    "torch.backends.*.flags", "torch.backends.cuda.can_use_*", "torch.backends.cuda.sdp_kernel",
    "torch.overrides.is_*", "torch.overrides.has_*", "torch.overrides.get_*",
)  # fmt: skip

HIDDEN: Mapping[str, str] = {
    "builtins.exec": "runs code that the scan cannot read",
    "builtins.eval": "runs code that the scan cannot read",
    "marshal.loads": "runs code that the scan cannot read",
    "runpy.*": "runs code that the scan cannot read",
    "imp.*": "runs code that the scan cannot read",
    "importlib.machinery.*": "runs code that the scan cannot read",
    "importlib.util.module_from_spec": "runs code that the scan cannot read",
}
"""Code chosen at run time."""

REACHES: Mapping[str, str] = {
    "gc.get_objects": "reaches objects that were not handed to it",
    "gc.get_referrers": "reaches objects that were not handed to it",
    "sys._getframe": "reaches the frames of its callers",
    "sys._current_frames": "reaches the frames of its callers",
    "inspect.currentframe": "reaches the frames of its callers",
    "inspect.stack": "reaches the frames of its callers",
    "ctypes.pythonapi.*": "changes the interpreter's own objects",
    "ctypes.memmove": "writes memory that may be another object's",
    "ctypes.memset": "writes memory that may be another object's",
    "types.CodeType": "makes code that the scan cannot read",
    "types.FunctionType": "makes code that the scan cannot read",
    "importlib.reload": "runs another package's import again, which undoes and redoes its state",
    "unittest.mock.patch*": "replaces an attribute of another package",
    "builtins.__build_class__": "changes how classes are made",
}
"""Ways to another package's objects."""

MUTATORS = frozenset(
    {"__delitem__", "__setitem__", "add", "append", "appendleft", "clear", "discard", "extend",
     "insert", "pop", "popitem", "remove", "reverse", "setdefault", "sort", "update"}
)  # fmt: skip
MODULES_WITH_SUCH_NAMES = ("numpy", "operator", "random", "torch.nn.functional", "torch.special")
"""Where these are names of functions."""
KEYED = frozenset({"__setitem__", "setdefault", "register_model", "register"})
"""Methods whose first argument names the entry they make."""

FOREIGN_OPERATORS = frozenset(
    {"_C", "_C_cache_ops", "_C_custom_ar", "_moe_C", "aten", "c10d", "prim", "prims", "quantized",
     "torch", "vllm"}
)  # fmt: skip
"""Namespaces of operators that exist without the optimization."""


def sentence(table: Mapping[str, str], name: str) -> str | None:
    """What the first fitting row says; None if no row fits."""
    return next((why for pattern, why in table.items() if fnmatchcase(name, pattern)), None)


def harmless(name: str) -> bool:
    """Whether importing a file may call this."""
    if name.startswith("builtins."):
        return name.removeprefix("builtins.").partition(".")[0] not in LOUD_BUILTINS
    return any(fnmatchcase(name, pattern) for pattern in HARMLESS)


def reads(name: str) -> bool:
    """Whether a name of torch's settings only asks for one, or is its own context manager."""
    return any(fnmatchcase(name, pattern) for pattern in TORCH_READS)
