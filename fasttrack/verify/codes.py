"""Every reason for which a result file is refused: what the code means and what to do about it.

Owns the table only; the checks live in `fasttrack.bundle` (001-029, 050, 060) and in the steps of
this room. Read by `fasttrack explain`. `tests/reject` holds one mutation for each line.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Reject:
    """What one code means and what to do about it."""

    meaning: str
    cure: str


_DAMAGED = "Fetch the file again from where it was published and compare its SHA-256."
_PACK = "Pack the run again; write bundles with this program only."
_EDITED = (
    "Somebody or something changed the file after it was made. Ask its author for the original, or "
    "measure again."
)
_RESIGN = "Ask the signer to sign the original file again with `fasttrack sign`."
_UPGRADE = "Verify with the version of fasttrack that wrote the file, or a newer one."
_MEASURE = "Such a run cannot have happened as recorded: measure again with `fasttrack validate`."

CODES: dict[str, Reject] = {
    "VER-001": Reject("The file is absent, unreadable or no result file at all.", _DAMAGED),
    "VER-002": Reject(
        "The file, or something in it, is larger than any honest bundle: it could exhaust readers.",
        "Do not open it by other means. Ask the author for a bundle of a smaller tier.",
    ),
    "VER-003": Reject(
        "A byte between the members differs from the only form an archive of these members has: "
        "compression, encryption, comments, padding, extra fields or appended data.",
        _DAMAGED,
    ),
    "VER-004": Reject(
        "A member's name is absolute, leads upwards, or has characters that programs read "
        "differently.",
        "Do not unpack this file.",
    ),
    "VER-005": Reject(
        "Two members have the same name, or names that differ in case only, or are out of order.",
        _PACK,
    ),
    "VER-006": Reject("A member is not part of a bundle's layout.", _PACK),
    "VER-007": Reject("A member's bytes do not match the checksum beside them.", _DAMAGED),
    "VER-008": Reject("A member is a link, a device or anything but a plain file.", _PACK),
    "VER-010": Reject("A file that every bundle has is missing.", _PACK),
    "VER-011": Reject("The manifest is not a sorted list of distinct files.", _PACK),
    "VER-012": Reject("A file is not listed in the manifest.", _EDITED),
    "VER-013": Reject("A file listed in the manifest is missing.", _EDITED),
    "VER-014": Reject("A file has another size than the manifest says.", _EDITED),
    "VER-015": Reject("A file has another SHA-256 than the manifest says.", _EDITED),
    "VER-016": Reject("The manifest gives a file a role that its name cannot have.", _PACK),
    "VER-017": Reject(
        "A document is not strict, canonical JSON: duplicate keys, NaN, huge integers, nesting "
        "or another spelling. Two readers could disagree on what it says.",
        _PACK,
    ),
    "VER-018": Reject("A document lacks a field, has one too many, or of a wrong kind.", _PACK),
    "VER-019": Reject(
        "A document has a newer format than this version knows. Unknown is not a pass.", _UPGRADE
    ),
    "VER-020": Reject("The statement lacks a field or has one too many.", _PACK),
    "VER-021": Reject("The statement is not an in-toto Statement v1.", _PACK),
    "VER-022": Reject("The statement is about something other than a validation.", _PACK),
    "VER-023": Reject(
        "The statement does not name the manifest with a SHA-256 digest; weaker ones do not count.",
        _PACK,
    ),
    "VER-024": Reject("The statement is about another manifest than this one.", _EDITED),
    "VER-025": Reject(
        "The statement contradicts the files: claim, policy, plan, run, target, tier or outcome.",
        _EDITED,
    ),
    "VER-026": Reject("The envelope has other fields than a DSSE envelope.", _PACK),
    "VER-027": Reject("The envelope declares another kind of payload.", _PACK),
    "VER-028": Reject("The envelope holds another payload than the statement.", _EDITED),
    "VER-029": Reject("The envelope lists other signatures than the signature files.", _PACK),
    "VER-030": Reject("Nobody signed the file.", "Sign it: `fasttrack sign FILE`."),
    "VER-031": Reject("A signature is not a well-formed SSH signature.", _RESIGN),
    "VER-032": Reject("A signature was made for another purpose (namespace).", _RESIGN),
    "VER-033": Reject("A signature does not match the bytes it is for.", _EDITED),
    "VER-034": Reject(
        "A signer's card is malformed, incomplete, or about another key or statement.", _RESIGN
    ),
    "VER-035": Reject(
        "A signature was made with a key or algorithm that is too weak or not supported.",
        "Sign with an Ed25519, ECDSA or FIDO key, or RSA of 2048 bits or more.",
    ),
    "VER-036": Reject(
        "One key signed more than once, so it would vouch for itself.",
        "A reproducer must be another person with another key.",
    ),
    "VER-037": Reject(
        "A signature is older than the run, or lies in the future.",
        "Set the signing machine's clock and sign again.",
    ),
    "VER-038": Reject(
        "A reproducer's challenge is not the one that its nonce gives for this file.",
        "The reproducer measures the cells that `fasttrack challenge FILE --nonce N` prints.",
    ),
    "VER-040": Reject(
        "The signer's name is not in the list of allowed signers.",
        "A maintainer adds the name and key to allowed_signers on the protected branch.",
    ),
    "VER-041": Reject(
        "The signer's name is listed, but not with this key: a foreign, replaced or removed key.",
        "Sign with the listed key, or have the new one listed.",
    ),
    "VER-042": Reject(
        "The key's validity period in allowed_signers does not include the time of signing.",
        "Sign with a valid key, or have the period extended.",
    ),
    "VER-043": Reject(
        "allowed_signers lists the key for other purposes (namespaces) only.",
        "A maintainer adds the namespace to the key's line.",
    ),
    "VER-044": Reject(
        "The key had been removed from the signer's account before the signature was made.",
        "Sign with a key that the account publishes, and take a new snapshot of it.",
    ),
    "VER-045": Reject(
        "A Sigstore bundle is malformed, or over another statement than the one beside it.",
        "Sign the original file again: `fasttrack sign FILE --sigstore`.",
    ),
    "VER-046": Reject(
        "No Sigstore bundle of the wanted identity verifies: another person, workflow or "
        "reference, a broken chain to the trust root, or no entry in the log.",
        "Compare identity and issuer with what the signer meant to use, then sign again.",
    ),
    "VER-050": Reject(
        "claim.toml, the author's own file, does not say what the frozen claim says.", _EDITED
    ),
    "VER-051": Reject("The claim is not the one that was frozen before measuring.", _EDITED),
    "VER-052": Reject("The policy is not the one that was frozen before measuring.", _EDITED),
    "VER-053": Reject("The plan is not the one that was frozen before measuring.", _EDITED),
    "VER-054": Reject(
        "The plan is not the plan of this claim, target, tier and seed: amounts, cells or units "
        "differ.",
        _EDITED + " If the file was written by another version of fasttrack, verify with that one.",
    ),
    "VER-055": Reject(
        "The self-test is not one of the harness that made the run, or of its zoo.",
        "Use one version of fasttrack for a whole run, and do not edit what it writes.",
    ),
    "VER-060": Reject("A record is malformed, or its file was cut short.", _DAMAGED),
    "VER-061": Reject("A record lies in the folder of another stage.", _PACK),
    "VER-062": Reject("A record file belongs to no unit of the plan.", _PACK),
    "VER-063": Reject(
        "A unit of the plan left no record file: results were left out.",
        "Measure the whole plan; the same `fasttrack validate` command continues where it stopped.",
    ),
    "VER-070": Reject(
        "A stored verdict is not what the rules make of the raw records.",
        _EDITED + " If the file was written by another version of fasttrack, verify with that one.",
    ),
    "VER-071": Reject("A verdict was removed or added.", _EDITED),
    "VER-072": Reject("The stored outcome is not what the verdicts add up to.", _EDITED),
    "VER-073": Reject(
        "The rules cannot be applied to these records at all. A verifier that stumbles never "
        "passes.",
        _MEASURE,
    ),
    "VER-074": Reject(
        "The report inside says something else than these records and verdicts do.",
        "Read the output of `fasttrack report FILE` instead, which is made anew.",
    ),
    "VER-080": Reject("Two sessions have the same name.", _MEASURE),
    "VER-081": Reject(
        "A session ran with another switch value than its arm claims: the arms were swapped.",
        _MEASURE,
    ),
    "VER-082": Reject(
        "Sessions of one run differ in more than the switch: build, flags, checkpoint or device.",
        "Nothing may be upgraded or reconfigured during a run. Measure again from the start.",
    ),
    "VER-083": Reject("A session's times are out of order or before the run began.", _MEASURE),
    "VER-084": Reject("An engine ran or booted while another was timed.", _MEASURE),
    "VER-085": Reject("A record names a session or an arm that is not there.", _MEASURE),
    "VER-086": Reject("A measured cell is not in the claim's grid.", _MEASURE),
    "VER-087": Reject(
        "The sessions of a block are not in the planned order, or measured a cell twice.", _MEASURE
    ),
    "VER-088": Reject(
        "Engine steps run backwards, overlap, take no time, or lie outside their session.", _MEASURE
    ),
    "VER-089": Reject("Counted tokens do not add up to what a sample says.", _MEASURE),
    "VER-090": Reject("Two samples consist of the same times: one is a copy.", _MEASURE),
    "VER-091": Reject("An item, a kernel case or a feature was recorded twice.", _MEASURE),
    "VER-092": Reject("A record contradicts itself in its counts.", _MEASURE),
    "VER-093": Reject("An answer's score is not the one its text gets.", _EDITED),
    "VER-094": Reject(
        "The answered items are not those that seed and plan give: their number, names, prompts or "
        "lengths.",
        _MEASURE,
    ),
    "VER-095": Reject(
        "The file holds answers to an eval that this version does not have, so nobody can score "
        "them again. Unknown is not a pass.",
        _UPGRADE,
    ),
    "VER-096": Reject(
        "A kernel cell ran from other seeds, less often, or in another regime than planned.",
        _MEASURE,
    ),
    "VER-098": Reject(
        "A proof of the path, or a step log, tells of other calls, steps or tokens than the "
        "schedule beside it.",
        _MEASURE,
    ),
}
