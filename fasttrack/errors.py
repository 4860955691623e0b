"""Every error the harness raises on purpose, and the table that explains each code.

Tree (exit status in brackets)::

    FasttrackError
    ├── UsageError [2]          wrong arguments, wrong claim: the author can mend it by editing
    ├── EnvironmentUnmet [4]    a package, checkpoint, key or device is missing here
    ├── RunError [5]            an engine or kernel child crashed, hung or was killed
    │   └── Interrupted [130]   the user stopped the run, which can be continued
    └── VerificationFailed [6]  a result file cannot be trusted

Owns: the classes, `EXIT_*` statuses and `EXPLANATIONS` for error codes. Does not own verdict
reasons (`fasttrack.schema.verdict`) or reject codes (`fasttrack.verify.codes`), which add their own
tables. Read by: `fasttrack.cli.common`, which is the one place that catches these, and
`fasttrack explain`.
"""

from __future__ import annotations

from dataclasses import dataclass

EXIT_PASS = 0
EXIT_FAIL = 1
EXIT_USAGE = 2
EXIT_INCONCLUSIVE = 3
EXIT_ENVIRONMENT = 4
EXIT_CRASH = 5
EXIT_REJECTED = 6
EXIT_INTERRUPTED = 130


@dataclass(frozen=True)
class Explanation:
    """What one code means and how to go on: shown by `fasttrack explain CODE`."""

    meaning: str
    investigate: str


class FasttrackError(Exception):
    """Root of all deliberate errors.

    `code` is stable and looked up in `EXPLANATIONS`; `cause` is one sentence about this occurrence;
    `next_step` is a command or an edit; `cell` names the grid cell, op or file concerned, if any.
    """

    exit_status = EXIT_CRASH

    def __init__(
        self,
        code: str,
        cause: str,
        *,
        next_step: str | None = None,
        cell: str | None = None,
        detail: str | None = None,
    ) -> None:
        super().__init__(f"{code}: {cause}")
        self.code = code
        self.cause = cause
        self.next_step = next_step or f"fasttrack explain {code}"
        self.cell = cell
        self.detail = detail

    def diagnostics(self) -> dict[str, str | int | None]:
        """The machine-readable form printed by `--json`."""
        return {
            "code": self.code,
            "cell": self.cell,
            "cause": self.cause,
            "next": self.next_step,
            "exit_status": self.exit_status,
        }


class UsageError(FasttrackError):
    """Arguments or a claim that cannot be acted upon."""

    exit_status = EXIT_USAGE


class EnvironmentUnmet(FasttrackError):
    """Something this machine lacks."""

    exit_status = EXIT_ENVIRONMENT


class RunError(FasttrackError):
    """A child process failed while it was being measured; records taken so far are kept."""

    exit_status = EXIT_CRASH


class Interrupted(RunError):
    """The user stopped the run; records taken so far are kept and the same command goes on."""

    exit_status = EXIT_INTERRUPTED


class VerificationFailed(FasttrackError):
    """A result file that must not be trusted."""

    exit_status = EXIT_REJECTED


EXPLANATIONS: dict[str, Explanation] = {
    "USE-001": Explanation(
        "An argument is not one of those the command takes.",
        "Run the command with --help; stage and target names are listed by `fasttrack plan`.",
    ),
    "USE-002": Explanation(
        "The folder a scaffold would be written to already holds files.",
        "Choose another name, or remove the folder yourself.",
    ),
    "USE-003": Explanation(
        "The repository, or one of the two commits to compare, cannot be read.",
        "Fetch both branches with their history: a shallow clone lacks the commit they share.",
    ),
    "CLM-001": Explanation(
        "There is no claim.toml where one was expected, or it cannot be read.",
        "Pass the optimization's folder. `fasttrack init NAME` writes a complete example.",
    ),
    "CLM-002": Explanation(
        "claim.toml is not valid TOML.",
        "The message names line and column.",
    ),
    "CLM-003": Explanation(
        "The claim has an unknown key, a wrong unit or a bad value. Units are part of the "
        "key (`context_tokens`, `equivalence_margin_percent`), so a wrong unit is an unknown key.",
        "Every problem is listed at once, with its path in the file and the nearest known key.",
    ),
    "CLM-004": Explanation(
        "The claim has no target of that name.",
        "`fasttrack plan FOLDER` lists the targets.",
    ),
    "CLM-005": Explanation(
        "The grid cannot be run: a cell, or an eval's prompt and answer, needs more tokens than "
        "the target's context, a batch is larger than the engine admits, or an axis is empty, "
        "repeats a value or has one below 1.",
        "Shrink the axis named in the message or raise the target's `max_model_len`.",
    ),
    "CLM-006": Explanation(
        "The engine does not know the declared switch, or ignores it: with the candidate's value "
        "set it did not report that value back, so both arms would run the same code.",
        "Check [switch] in claim.toml and that the plugin is installed and listed in [plugin].",
    ),
    "PRF-001": Explanation(
        "The prompt set of a target cannot be read: it is missing, too large, or a line is no JSON "
        "object with a text.",
        'Write one JSON object a line, with a non-empty text under "text" or "prompt".',
    ),
    "PRF-002": Explanation(
        "The prompt set, or the traces of agent traffic, have another digest than the claim wants.",
        "Get the file the claim was written for, or pin the new digest on purpose.",
    ),
    "PRF-003": Explanation(
        "Traces of agent traffic cannot be replayed on this target: missing, not in the Weka "
        "format, longer than its context, or fewer trees than are to run at once.",
        "The message names the file and what is wrong; docs/agent.md states the format.",
    ),
    "EVL-001": Explanation(
        "The data file of an external eval is missing or cannot be read. It is never replaced by "
        "another set.",
        "Put the official file where claim.toml says, or mend `file` under the target's evals.",
    ),
    "EVL-002": Explanation(
        "The data file of an external eval has another digest than the claim pins.",
        "Get the file the claim was written for, or pin the new digest on purpose.",
    ),
    "EVL-003": Explanation(
        "The data file of an external eval is not in the official form, or has no rows.",
        "The message names the first bad row and the columns that are needed.",
    ),
    "EVL-004": Explanation(
        "An item's rendered prompt and its answer do not fit the target's context. Items are never "
        "left out, so nothing is asked.",
        "Raise `max_model_len`, lower `answer_tokens`, or use a file of shorter items.",
    ),
    "EVL-005": Explanation(
        "The claim names an external eval whose items are not frozen.",
        "Run `fasttrack evals prepare FOLDER --target NAME` and keep the file it writes.",
    ),
    "EVL-006": Explanation(
        "The frozen items of an external eval are not those of the claim, the data file, the "
        "scorer or the model's rendered prompts.",
        "The message says what differs. If it was meant to, prepare the items again.",
    ),
    "EVL-007": Explanation(
        "An answer did not end within --timeout. It was given up and recorded with what there was "
        "of it; those beside it went on, and its eval is INCOMPLETE.",
        "Look for a request that is never scheduled. Raise --timeout only if it was slow.",
    ),
    "EVL-008": Explanation(
        "The data of an external eval are not in the hub client's cache and the hub did not hand "
        "them out at the claim's revision: no network, no such file or commit, or no access. They "
        "are never replaced by others.",
        "`hf download REPO FILE --repo-type dataset --revision COMMIT` where there is a network; "
        "give the file by `--data NAME=FILE`.",
    ),
    "EVL-009": Explanation(
        "An external eval wants the server of an engine that has none.",
        "Leave `server` out of the target's evals, or use an engine that has one, such as vllm.",
    ),
    "ENV-001": Explanation(
        "A Python package that this command needs is not installed.",
        "Install the extra named in the message. `fasttrack doctor` shows all of them.",
    ),
    "ENV-002": Explanation(
        "There is no engine of that name in this installation.",
        "Engines come from the entry-point group `fasttrack.engines`; see `fasttrack doctor`.",
    ),
    "ENV-003": Explanation(
        "The target's checkpoint is missing and the claim gives no command to build it, or the "
        "build command failed.",
        "Read the log named in the message; run the build command by hand.",
    ),
    "ENV-004": Explanation(
        "The checkpoint's digest is not the one the claim pins: other files than before.",
        "Delete the folder so that it is built again, or pin the new digest on purpose.",
    ),
    "ENV-005": Explanation(
        "The engine refused the checkpoint: a tensor is missing or has the wrong shape.",
        "The engine's own message is quoted and its log is named. Rebuild the checkpoint.",
    ),
    "ENV-006": Explanation(
        "A signing key or the ssh-keygen program is missing or unusable.",
        "Pass --key FILE, or load the key into an SSH agent.",
    ),
    "ENV-007": Explanation(
        "The audit of compiled kernels needs a Python with CuTe DSL, or NVIDIA's nvdisasm, and one "
        "of them is missing. Neither needs a GPU.",
        "`make cute` sets both up where there is a Python 3.12; FASTTRACK_CUTE_PYTHON and "
        "FASTTRACK_NVDISASM name them elsewhere.",
    ),
    "RAY-001": Explanation(
        "No Ray cluster answers at the address of --ray, or it is of another version.",
        "`ray status --address ADDRESS`. Every node needs the same Ray and Python as the driver.",
    ),
    "RAY-002": Explanation(
        "A node of the Ray cluster was lost while it measured a block of sessions. The block was "
        "measured again, whole, on another node of the same description; the run went on.",
        "Nothing to do. The rules do not count a block whose sessions ran on two nodes.",
    ),
    "RAY-003": Explanation(
        "No node of the Ray cluster has what the target needs, or none is like the one that "
        "measured the blocks before.",
        "Add such a node, then repeat the command: finished blocks are kept. A target of more GPUs "
        "than a node has is run without --ray: see docs/scale-out.md.",
    ),
    "RAY-004": Explanation(
        "A node of the Ray cluster holds other files than the driver: harness, optimization or "
        "checkpoint. Its numbers would be those of something else.",
        "Share the folders between the nodes, or install and copy the same files to every node.",
    ),
    "ENG-001": Explanation(
        "The engine could not be started.",
        "Its message is quoted and its log is named; -v prints the child's traceback.",
    ),
    "ENG-002": Explanation(
        "The optimization raised while it was imported or set up by the engine.",
        "Import it by hand in the same environment; -v prints the traceback.",
    ),
    "ENG-003": Explanation(
        "A child process was killed by a signal (out of memory, a native crash, or by hand).",
        "The signal and the last log lines are quoted. Run again: finished work is kept.",
    ),
    "ENG-004": Explanation(
        "A child process did not answer in time. It was stopped with all it started.",
        "The message names what was asked of it. Raise --timeout only if it was slow, not stuck.",
    ),
    "ENG-005": Explanation(
        "A child process broke the protocol: wrong nonce, oversized or malformed message.",
        "Code under test must not touch the harness's pipe; look for stray writes.",
    ),
    "ENG-006": Explanation(
        "The engine reported an error while generating.",
        "The engine's message is quoted; -v prints the child's traceback.",
    ),
    "ENG-007": Explanation(
        "The optimization refused the requested configuration at start-up.",
        "Its own list of reasons is quoted in full.",
    ),
    "ENG-008": Explanation(
        "A child process that runs code under test reached its memory limit.",
        "The limit is half of the memory that was free when it started. Shrink the case's inputs, "
        "or look for an allocation that grows from call to call.",
    ),
    "CAS-001": Explanation(
        "The optimization offers no kernel cases, or not for every op its claim names.",
        "Add a KernelCase per op and list it under the entry point `fasttrack.cases`.",
    ),
    "CAS-002": Explanation(
        "A kernel case's regimes cannot be cells: none, too many, two alike, or values that are "
        "not integers.",
        "Mend `regimes()` of the case; a mapping of axis names to integers per cell.",
    ),
    "RUN-001": Explanation(
        "The run was interrupted. Everything measured so far is kept in the run folder.",
        "Repeat the same `fasttrack validate` command: it continues where it stopped.",
    ),
    "RUN-002": Explanation(
        "The run folder is in use by another process.",
        "Wait for it, or name another folder with --runs.",
    ),
    "RUN-003": Explanation(
        "A record file of this run folder is damaged.",
        "Move the named file away: only that unit of work is measured again.",
    ),
    "ZOO-001": Explanation(
        "There is no zoo of planted cheats and honest work: the self-test has nothing to judge.",
        "Install the release's wheel, work in a checkout, or pass --zoo FOLDER.",
    ),
    "ZOO-002": Explanation(
        "A plant of the zoo is malformed: its zoo.toml cannot be read, or names no code.",
        "The message names plant and key; `fasttrack/selftest/catalogue.py` states the form.",
    ),
    "INT-001": Explanation(
        "An error nobody foresaw: a defect of the harness.",
        "Repeat with -v and report the traceback. Records already written are kept.",
    ),
}
