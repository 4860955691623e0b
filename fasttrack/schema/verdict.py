"""Verdicts: what rules say about records. A verdict is never an input of another verdict's proof.

Owns `State`, `Verdict`, `Outcome` and `REASONS`, the table behind `fasttrack explain`.
"""

from __future__ import annotations

from enum import StrEnum

from fasttrack.errors import Explanation
from fasttrack.schema.claim import Frozen


class State(StrEnum):
    """The closed set of answers. MISSING is the default of everything required."""

    PASS = "PASS"
    FAIL = "FAIL"
    INCONCLUSIVE = "INCONCLUSIVE"
    MISSING = "MISSING"
    INVALID = "INVALID"
    INSENSITIVE = "INSENSITIVE"
    NOT_EXERCISED = "NOT_EXERCISED"
    UNSUPPORTED = "UNSUPPORTED"
    REFUSED_AS_DECLARED = "REFUSED_AS_DECLARED"
    FASTER = "FASTER"
    SLOWER = "SLOWER"
    EQUIVALENT = "EQUIVALENT"
    NON_INFERIOR = "NON_INFERIOR"
    NON_INFERIOR_BUT_WORSE = "NON_INFERIOR_BUT_WORSE"
    INFERIOR = "INFERIOR"
    INCOMPLETE = "INCOMPLETE"


GOOD = frozenset({State.PASS, State.FASTER, State.EQUIVALENT, State.NON_INFERIOR,
                  State.REFUSED_AS_DECLARED, State.UNSUPPORTED})  # fmt: skip
BAD = frozenset({State.FAIL, State.SLOWER, State.INFERIOR})


class Verdict(Frozen):
    """One rule's answer for one cell."""

    rule: str
    cell: str
    state: State
    reason: str
    """Key of `REASONS`."""
    detail: str
    """One sentence about this occurrence: op, output, slice, numbers."""
    deciding: bool = True
    """Whether the outcome depends on it; speed cells inform the sentence, which decides."""
    estimate: float | None = None
    lower: float | None = None
    upper: float | None = None
    unit: str = ""
    n: int = 0
    floor: float | None = None
    """Noise floor of the cell, in the unit of the estimate."""
    base_ms: float | None = None
    candidate_ms: float | None = None
    """Of a speed cell: what its work costs in each arm, milliseconds; the detail names it."""
    device_base_ms: float | None = None
    device_candidate_ms: float | None = None
    """Of a speed cell: a step of the model in each arm by the device's clock, milliseconds."""
    device_estimate: float | None = None
    device_lower: float | None = None
    device_upper: float | None = None
    """Their ratio and its interval, paired as `estimate` is; no state rests on it."""
    next: str = ""
    """Command that reproduces the cell."""


class Outcome(Frozen):
    """The answer to the whole claim."""

    state: State
    """PASS, FAIL or INCONCLUSIVE."""
    admissible: bool
    not_admissible_because: tuple[str, ...] = ()
    untested: tuple[str, ...] = ()
    """What this run does not prove, for the head of the report."""


REASONS: dict[str, Explanation] = {
    "OK": Explanation("The rule's conditions hold.", "Nothing to do."),
    "NO-RECORDS": Explanation(
        "A required stage, cell or feature left no record. Nothing is assumed in its favour.",
        "Run `fasttrack validate FOLDER --only STAGE`; a failure record says why it stopped.",
    ),
    "ISO-DIFF": Explanation(
        "With the switch off, the engine is not stock: an output, a registered op, an environment "
        "variable or a global setting differs with the plugin installed.",
        "The check's name says which. Move the work out of import time and behind the switch.",
    ),
    "ISO-SCOPE": Explanation(
        "Files outside the claimed scope changed.",
        "Narrow the change or widen [scope].paths on purpose.",
    ),
    "ISO-PROTECTED": Explanation(
        "The change touches a component that every model shares (input preparation, sampling, "
        "KV-cache management, scheduler, registries), another model, or the harness itself. A "
        "claim's scope cannot allow that.",
        "Move the work into the optimization's own files. A maintainer can allow a path under "
        "[isolation] allowed_paths of the policy.",
    ),
    "ISO-IMPORT": Explanation(
        "Importing a file of the optimization does more than define things: it calls, writes, "
        "starts something, or loads code that a reader of the source cannot see.",
        "Move it into the function that the switch guards. A call that is harmless can be declared "
        "under [[isolation.exempt]] with a sentence; the run-time comparison still decides.",
    ),
    "ISO-PATCH": Explanation(
        "The source replaces or changes something of another package: an attribute, a registry's "
        "entry, a module, an object that was not handed to it.",
        "Use the engine's own extension points (register a model, return an attention backend). "
        "Only policy can make this code exemptible.",
    ),
    "ISO-ENV": Explanation(
        "The source changes the environment or another setting of the whole process.",
        "Pass the value as an argument, or set it back in a `finally` around the one use.",
    ),
    "ISO-TORCH": Explanation(
        "The source changes a global setting of torch, or an operator that other models use.",
        "Set it in a context manager of its own that sets it back, inside the switched path.",
    ),
    "ISO-CODE": Explanation(
        "With the plugin installed and its switch off, loaded code of the engine is not stock: a "
        "function, method, registry or object differs.",
        "The detail names module and function. Nothing may be replaced before the switch is on, "
        "and nothing outside the claimed model even then.",
    ),
    "ISO-ON": Explanation(
        "With the switch on, an unrelated model is not stock: its answers, the engine's code or a "
        "global setting differ.",
        "The switch must act on the claimed model only; look for work done when it is read.",
    ),
    "ISO-SPREAD": Explanation(
        "On the claimed model, switching on changes code or settings outside the optimization's "
        "own modules.",
        "The detail names module and function. Put the work into the model's own layers.",
    ),
    "ISO-COPY": Explanation(
        "The engine loaded other files of the optimization than those that were judged.",
        "Install the folder itself (`pip install -e FOLDER`), and load no tests from its code.",
    ),
    "ISO-REFUSED": Explanation(
        "With the switch on, the engine refuses to start an unrelated model and says why, so "
        "nothing of it can differ.",
        "Nothing to do; users of other models in the same process have to leave the switch off.",
    ),
    "ISO-DECLARED": Explanation(
        "Policy lets all findings be: the claim declares them, or policy names the files.",
        "Nothing to do; the report lists them, with the author's sentences.",
    ),
    "NUM-RATIO": Explanation(
        "The candidate's error against the fp64 reference is a larger multiple of the stock op's "
        "own error than policy allows.",
        "The detail names op, output and worst slice. Re-run that case with the command shown.",
    ),
    "NUM-BIAS": Explanation(
        "The candidate's error has a signed mean: it would add up over layers.",
        "Look for truncation instead of rounding, or a missing term.",
    ),
    "NUM-CAP": Explanation(
        "A single element is further off than any element of stock, by more than the hard cap.",
        "The detail gives its coordinate: usually a tail, a padded row or a wrong index.",
    ),
    "NUM-NONFINITE": Explanation(
        "NaN or Inf appear where the reference has none, or are missing where it has them.",
        "Look for reads of padding, unwritten outputs and empty reductions.",
    ),
    "NUM-TOUCHED": Explanation(
        "The op wrote cache rows or slots it does not own.",
        "Check masks of padded rows and the null slot.",
    ),
    "NUM-REPEAT": Explanation(
        "The same inputs gave different bits in repeated calls: a race, or an undeclared atomic.",
        "Repeat the case under load; look for a missing synchronisation.",
    ),
    "NUM-SPREAD": Explanation(
        "The op is declared to be non-deterministic, and its repeats differ by more than stock's.",
        "Sum in a fixed order, or find the race that the declaration covers up.",
    ),
    "NUM-CASE": Explanation(
        "The candidate raised an exception.",
        "The message is quoted; run the case alone with the command shown.",
    ),
    "NUM-HUNG": Explanation(
        "The candidate did not return in time. It was stopped, and the op's other cells left out.",
        "Look for a wait without a bound; raise --timeout only if it is slow, not stuck.",
    ),
    "NUM-KILLED": Explanation(
        "The candidate's process died: a native crash, a signal, or an exit of its own.",
        "The signal is named and the log's last lines are quoted in the child's log.",
    ),
    "NUM-MEMORY": Explanation(
        "The candidate asked for more memory than its process may have.",
        "Half of what was free at the start is allowed. Look for growth from call to call.",
    ),
    "NUM-OUTPUT": Explanation(
        "The candidate returned something other than plain tensors of its own: a missing output, "
        "another shape, dtype or device, a subclass, a lazy or self-overlapping view, or memory of "
        "an input.",
        "Return `torch.Tensor`s with stock's shapes and dtypes; declare inputs it may change.",
    ),
    "NUM-UNJUDGED": Explanation(
        "The case's own inputs, reference, stock or abilities failed, so nothing follows about "
        "the candidate.",
        "Mend the case; the message names the part.",
    ),
    "NUM-REFERENCE": Explanation(
        "The case's reference disagrees with stock by far more than rounding: one of the two "
        "computes something else, so neither can be a yardstick.",
        "Compare both by hand on the named cell. The candidate is not at fault yet.",
    ),
    "NUM-ABSENT": Explanation(
        "The claim names an op for which there is no kernel case, or none with usable regimes.",
        "Add a KernelCase of that name; the message lists the cases there are.",
    ),
    "NUM-MUTATED": Explanation(
        "An input changed during the call without being declared under `in_place`.",
        "Work on a copy, or declare the input if the engine expects it to change.",
    ),
    "NUM-GUARD": Explanation(
        "Bytes beside a buffer were written: the op reaches out of bounds.",
        "Check the last tile, strides and the size of vectorised stores.",
    ),
    "NUM-UNWRITTEN": Explanation(
        "Part of an output buffer still holds the poison it was filled with.",
        "Look for tails, skipped rows and early returns.",
    ),
    "NUM-LATE": Explanation(
        "The outputs changed after the call had returned: work escapes the measured window.",
        "Join threads and streams before returning.",
    ),
    "NUM-STALE": Explanation(
        "The answer did not follow its inputs: new content at an old address, or one changed "
        "element, gave the result of earlier inputs.",
        "Remove what is cached by address, by shape or by a sample of the content.",
    ),
    "NUM-PACE": Explanation(
        "Calls with new content take several times as long as calls that repeat it, in most "
        "rounds: results are remembered, or one call does the work of the next.",
        "Each call must do its own work; prepare weights outside the op.",
    ),
    "NUM-ESCAPED": Explanation(
        "The device worked on after the candidate's stream said it was done, or was given work "
        "after the call had returned.",
        "Make the caller's stream wait for every other stream before returning.",
    ),
    "NUM-GRAPH": Explanation(
        "A call recorded into a CUDA graph and run again, with other content or metadata at the "
        "same addresses, is wrong: something was frozen when it was recorded.",
        "Read lengths, slots and scalars from device memory in the kernel, not on the host.",
    ),
    "NUM-SANITIZER": Explanation(
        "compute-sanitizer found an invalid access, a race between threads of a block, a misused "
        "barrier or a read of memory nothing wrote.",
        "The log of that tool is in the run folder; run it by hand on the op's smallest case.",
    ),
    "NUM-UNSANITIZED": Explanation(
        "compute-sanitizer had nothing to do, is not installed, or did not come to an end.",
        "Install the CUDA toolkit's compute-sanitizer; its log is in the run folder.",
    ),
    "NUM-SKEW": Explanation(
        "The result of an exchange depends on which rank comes first.",
        "Wait for every peer's data of this generation; re-arm mailboxes before they are reused.",
    ),
    "NUM-SPEED": Explanation(
        "The fastest call beats what the device could need for the bytes and operations the case "
        "states.",
        "Check `work()` of the case; otherwise the work is not being done.",
    ),
    "NUM-PADDING": Explanation(
        "Other content in padding or in rows of nobody changed a result: something reads there.",
        "Check masks, lengths and the last page; the detail gives the first coordinate.",
    ),
    "NUM-ROWS": Explanation(
        "With the rows in another order, a row's result is wrong: it depends on its neighbours.",
        "Look for shared scales, indices of tiles, and state carried from row to row.",
    ),
    "NUM-HOSTILE": Explanation(
        "Wrong on rows of zeros, constants, tiny, denormal or outlying values among benign ones.",
        "Look for a cheap path taken on the look of the data, and for flushed denormals.",
    ),
    "NUM-FROZEN": Explanation(
        "Wrong with other scalars or metadata at equal shapes: values of an earlier call are used.",
        "Pass them as arguments of every call; key plans by everything they depend on.",
    ),
    "NUM-SHAPE": Explanation(
        "Wrong at a shape beside the cell's own, called in turn with it.",
        "Check tile and page edges, and plans keyed by too little.",
    ),
    "NUM-UNCHECKED": Explanation(
        "A check or probe is neither recorded nor declined in this cell. Nothing is assumed.",
        "Run the stage again; a failure record says why it stopped.",
    ),
    "NUM-REPEATS": Explanation("Fewer repeats than policy asks for.", "Use a higher tier."),
    "NUM-INSENSITIVE": Explanation(
        "A planted fault was accepted in this cell, so passing it proves nothing.",
        "Make the case's inputs or slices sharper.",
    ),
    "NUM-POWER": Explanation(
        "The interval of an error ratio holds its limit: too few seeds for outputs this small.",
        "Use a higher tier, or let the case compute more rows per cell.",
    ),
    "NUM-SEEDS": Explanation("Fewer seeds than policy asks for.", "Use a higher tier."),
    "HOIST-EARLY-LOAD": Explanation(
        "On some path a compiled kernel reads memory that the step writes before it has waited for "
        "the kernel ahead: it may see the previous step's data. The compiler may have moved it.",
        "The detail gives the instruction and the kernel parameter. Load behind the wait, without "
        "`.nc` or a side-effect-free asm; declare a weight as static. See docs/audit.md.",
    ),
    "HOIST-EARLY-STORE": Explanation(
        "On some path a compiled kernel writes memory before the wait, while the kernel ahead may "
        "still read it.",
        "Store behind the wait, or declare memory of the kernel's own as own.",
    ),
    "HOIST-NO-WAIT": Explanation(
        "A kernel that is launched before the one ahead has ended never waits. Whoever waits for "
        "it then does not wait for what came before.",
        "Wait in every kernel of the chain, or launch it in stream order.",
    ),
    "HOIST-UNREADABLE": Explanation(
        "The machine code could not be followed, so nothing says that it is in order: an address "
        "that derives from no kernel parameter, an indirect branch, a kernel that did not compile.",
        "The detail says what. Pass pointers as kernel parameters; name every kernel of a cubin.",
    ),
    "HOIST-UNDECLARED": Explanation(
        "The optimization's sources launch or compile kernels of this kind and its claim names "
        "none for the audit.",
        "List them in a function and name it under [plugin] compiled_kernels.",
    ),
    "HOIST-TOOLS": Explanation(
        "The compiler or the disassembler is missing here, so no kernel was audited.",
        "`make cute`, or name a Python with CuTe DSL in FASTTRACK_CUTE_PYTHON; then run again.",
    ),
    "HOIST-INSENSITIVE": Explanation(
        "A planted kernel was not judged as it must be with this compiler and disassembler, so "
        "their word on the other kernels proves nothing.",
        "The detail names the plant. Use the locked versions of both.",
    ),
    "HOIST-NONE": Explanation(
        "Not applicable: the optimization compiles no kernels of its own.", "Nothing to do."
    ),
    "PATH-NONE": Explanation(
        "No specialised step was seen where the claim says there should be some.",
        "Read the reasons in the path log: a fallback condition held.",
    ),
    "PATH-PREFILL": Explanation(
        "A step with prefill tokens, more than one of some request, did not run the stock path.",
        "The claim covers pure decode; plan() must fall back.",
    ),
    "PATH-BASE": Explanation(
        "The base arm ran a specialised step: the arms do not differ by the switch.",
        "Check that the default is stock.",
    ),
    "PATH-FALLBACK": Explanation(
        "A pure decode step inside the claimed batches ran the stock path.",
        "The path log gives the reason for the step.",
    ),
    "PATH-MISMATCH": Explanation(
        "The optimization's step log and the engine's scheduler disagree on steps or tokens.",
        "One of the two is wrong; evidence that contradicts the engine is not evidence.",
    ),
    "PATH-TRACE": Explanation(
        "The profiler's names of decode steps do not bear the path log out: names of stock are "
        "there, declared ones are missing, or the entry was not called once per specialised step.",
        "The detail names what was seen. [targets.NAME.trace] declares names, [plugin].entry the "
        "entry.",
    ),
    "PATH-WATERMARK": Explanation(
        "The entry's result was replaced by a constant, and answers did not follow, or did where "
        "stock computes them: something else than the claimed code makes the answers.",
        "Use the entry's result in every specialised step, and nowhere else.",
    ),
    "PATH-UNDECLARED": Explanation(
        "The claim names nothing by which the harness could see the path for itself, or a name "
        "that says nothing.",
        "Declare [plugin].entry, and `shows` or `hides` under [targets.NAME.trace].",
    ),
    "PATH-NULL-SLOT": Explanation(
        "A step changed the engine's null block, which every padded row reads.",
        "Mask the writes of padded rows.",
    ),
    "PATH-FOREIGN-WRITE": Explanation(
        "A step changed cache blocks or rows that its requests do not own or had already computed.",
        "The detail names them. Check slot mapping, padding and block tables.",
    ),
    "PATH-UNLOGGED-WRITE": Explanation(
        "A step changed cache rows that its own log does not mention.",
        "Log every slot and row under keys that end in `slots` and `rows`.",
    ),
    "PATH-UNWATCHED": Explanation(
        "The caches of this engine could not be compared, or no write was seen in them.",
        "The detail says why. Nothing is proved about what the path writes.",
    ),
    "PATH-DRIFT": Explanation(
        "An answer whose steps alternate between stock and the specialised path differs from the "
        "uninterrupted one by more than stock differs from itself.",
        "The two paths do not leave the same state behind: compare caches after one step of each.",
    ),
    "PATH-NOISE": Explanation(
        "Stock's own answers to one prompt part at once when it is computed otherwise, so that an "
        "alternation of paths has nothing to be compared with.",
        "Measure again: answers are forced along each other since. A model of many layers and "
        "random weights multiplies every last bit.",
    ),
    "PATH-OTHER-CODE": Explanation(
        "The kernel cases run other compiled code than the engine does: their tests prove nothing "
        "about what serves.",
        "Let the case call the very unit the engine loads.",
    ),
    "PATH-NO-CODE": Explanation(
        "No compiled code of its own is mapped in engine or cases, so whether they run the same "
        "cannot be seen. It informs and does not decide.",
        "Nothing to do for code in Python; the run's source digest binds both to the same files.",
    ),
    "FEAT-LOST": Explanation(
        "A feature that stock offers does not work, or gives something else, with the switch on.",
        "The failed check is named; run `fasttrack validate FOLDER --only features`.",
    ),
    "FEAT-BASE": Explanation(
        "The feature does not work in the base arm either, so nothing follows about the change.",
        "Check the checkpoint and the engine's own support.",
    ),
    "FEAT-UNDECLARED": Explanation(
        "The candidate refused a feature that its claim does not list as refused.",
        "Support it, or declare it under [features.refused] with a reason.",
    ),
    "FEAT-DECLARED": Explanation(
        "Refused, as the claim declares.", "Nothing to do; the report lists it."
    ),
    "EVAL-WORSE": Explanation(
        "Answers are worse than base by more than the margin, or certainly worse.",
        "See which items flipped and at which token the arms part.",
    ),
    "EVAL-ALARM": Explanation(
        "The candidate loses right answers more often than it wins some, beyond chance: a "
        "human has to look, even if the loss is within the margin.",
        "Compare the answers to the items that flipped with stock's.",
    ),
    "EVAL-LENGTH": Explanation(
        "Answers are shorter or longer than stock's, or more of them end at the token limit.",
        "Look at the finish reasons, then at the first token at which a pair of answers parts.",
    ),
    "EVAL-PARTED": Explanation(
        "A few answers part from stock at a decided token: too few to tell a fault from a near-tie "
        "inside the model, such as two experts whose router scores are equal up to rounding.",
        "Use a higher tier; or score the named item at that token with an fp64 reference.",
    ),
    "EVAL-POWER": Explanation(
        "Too few items to tell: the interval is wider than the margin.", "Use a higher tier."
    ),
    "EVAL-FLOOR": Explanation(
        "Base itself scores zero, so no loss could show: an eval that cannot fail proves nothing. "
        "On a development target it informs and does not decide.",
        "Use a checkpoint whose answers mean something; read the divergence verdict beside it.",
    ),
    "EVAL-INCOMPLETE": Explanation(
        "Items are missing, failed in transport, or were asked with different prompts.",
        "Run the stage again; items are never dropped.",
    ),
    "EVAL-DIVERGED": Explanation(
        "Tokens part from stock where the model was decided: the gap between the two likeliest "
        "tokens is larger than stock's own run-to-run noise.",
        "The detail names item and position; compare the layers at that step.",
    ),
    "SPD-FASTER": Explanation(
        "The interval of the paired speed-up lies above 1 by more than the noise floor.", "-"
    ),
    "SPD-SLOWER": Explanation(
        "The interval of the paired speed-up lies below 1 by more than the noise floor.",
        "Leave the cell out of the plan's scope, or mend it.",
    ),
    "SPD-EQUIVALENT": Explanation(
        "The interval lies inside the equivalence margin: no difference that matters.", "-"
    ),
    "SPD-NOISE": Explanation(
        "The interval is too wide for any answer.", "Use a higher tier or a quieter machine."
    ),
    "SPD-UNSUPPORTED": Explanation(
        "The claim declares, before measuring, that it does not support the cell. The sentence is "
        "not about it.",
        "Nothing to do.",
    ),
    "SPD-REFUSED": Explanation(
        "The engine did not start with the parallelism or the drafts that the cell needs. Where "
        "stock does not start either, the cell is UNSUPPORTED and leaves the sentence; where only "
        "the candidate does not, it is NOT_EXERCISED and breaks it.",
        "The detail holds the engine's words. Take the value off the grid, or declare its cells "
        "under [targets.NAME.grid.unsupported].",
    ),
    "SPD-PAIRS": Explanation("Fewer valid pairs than policy asks for.", "Use a higher tier."),
    "SPD-SENTENCE": Explanation(
        "The claimed sentence does not follow from its cells.", "See the cells named in the detail."
    ),
    "VAL-TOKENS": Explanation(
        "A session produced fewer tokens or requests than planned, or prefill fell into the decode "
        "window.",
        "Such a session is not a measurement of the cell.",
    ),
    "VAL-CLOCK": Explanation(
        "The engine's step times do not add up to the time that passed on the harness's own clock: "
        "a step returned before its work was done, or the engine's clock was changed.",
        "Wait for the device inside the step, and leave the clock alone. A machine that stood "
        "still in mid-run looks alike: run again.",
    ),
    "VAL-WARM": Explanation(
        "Too many samples were no steady state: steps early in the window took far longer or far "
        "shorter than late ones, as while an engine still compiles, captures or tunes, or while "
        "others use the machine.",
        "Run alone on the machine. If one arm is always concerned, warm it up before its window.",
    ),
    "VAL-MACHINE": Explanation(
        "Too many sessions did not have the machine to themselves (processes of others used its "
        "CPUs or GPUs, GPU clocks were throttled, memory failed, nobody watched), or are not of "
        "the machine of the session with which they are paired.",
        "Stop what else runs, cool the machine down, and measure again. A run that goes on "
        "elsewhere needs a machine of the same kind, and each pair of sessions on one of the two.",
    ),
    "VAL-PROMPTS": Explanation(
        "The arms were asked different prompts, or prompts that are no real text: random tokens "
        "use the experts of a mixture otherwise than text and are hard to draft for, so speeds on "
        "them mislead.",
        "Use the shipped prompts, or real text of your own under [targets.NAME.prompts].",
    ),
    "VAL-BASELINE": Explanation(
        "Stock did not run as users run it: on a GPU it was kept in eager mode, where it waits for "
        "launches that a graph would not need.",
        "Set `enforce_eager = false` under [targets.NAME.engine_args]. Where stock cannot run "
        "otherwise, say so in the target's baseline_note, which every report shows.",
    ),
    "VAL-ACCEPT": Explanation(
        "The arms accept different shares of their draft tokens, or not the share that was to be "
        "simulated: a gain would be one of acceptance, which the answers pay for.",
        "Verification must accept what stock accepts: compare answers with and without drafts. An "
        "engine that ignores synthetic acceptance, as vLLM does on a CPU, needs `acceptance` left "
        "out.",
    ),
    "VAL-UNROUTED": Explanation(
        "Which experts the prompts were sent to could not be seen, so that only the evenness of "
        "their tokens tells them from random ones.",
        "Routing is seen in eager mode on one rank; the detail says what was in the way.",
    ),
    "VAL-ENGINE": Explanation(
        "Sessions of one run differ in more than the switch (build, flags, checkpoint).",
        "Nothing may be upgraded or reconfigured during a run.",
    ),
    "AGT-CLIENT": Explanation(
        "Agent traffic was to be replayed, and aiperf is not installed. Nothing else of the run is "
        "lost; nothing is assumed of the traffic.",
        "Install it into an environment of its own, with the command in the detail, or name it by "
        "--aiperf or FASTTRACK_AIPERF; then run again. Without --agent tier smoke does not ask.",
    ),
    "AGT-SERVER": Explanation(
        "Agent traffic needs an engine with an OpenAI-compatible server and a checkpoint with a "
        "tokenizer.",
        "Use a target of the engine vllm, or leave agent traffic out.",
    ),
    "AGT-FAILED": Explanation(
        "A replay of agent traffic came to no end: the server did not start or died, or the client "
        "left nothing to read.",
        "The message is quoted; the server's and the client's logs are in the run folder.",
    ),
    "AGT-TRACES": Explanation(
        "Sessions of one cell replayed different traces, or others than the claim pins.",
        "Nothing may change during a run; begin a new one with --fresh.",
    ),
    "AGT-REQUESTS": Explanation(
        "Requests of the traces failed, are missing, or were answered with another length than "
        "the trace's. A server that sheds load looks fast; a client may end with status 0 all the "
        "same.",
        "The detail quotes the first errors. A prompt that does not fit needs shorter traces or a "
        "larger max_model_len.",
    ),
    "AGT-COUNTS": Explanation(
        "The client's sum of requests or tokens is not what the server's own counters say.",
        "Nobody else may use the server meanwhile; look for requests that were given up.",
    ),
    "AGT-CACHE": Explanation(
        "The arms found different shares of their prompts in the prefix cache, or a session began "
        "with a warm one: times would compare caches.",
        "Keep prefix caching on and the block size equal in both arms; ask nothing before.",
    ),
    "AGT-TIMES": Explanation(
        "Token times of a replay cannot be believed: missing, out of order, or beyond the "
        "harness's own clock.",
        "The server has to stream, with a count of tokens in every packet.",
    ),
    "AGT-FEW": Explanation(
        "Too few pairs of engine boots replayed agent traffic to judge interactivity: it is "
        "described, without an interval.",
        "Use tier standard or full. Tails of few requests are never judged.",
    ),
    "RUN-PARTIAL": Explanation(
        "The run was made with --only or --skip: it is for its author and never admissible.",
        "Run `fasttrack validate FOLDER` in full.",
    ),
}
