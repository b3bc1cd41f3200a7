"""Methods of 2024 to 2026: rules for heavy tails and unequal speeds, local steps, an all-reduce."""

from experiments.papers.base import Panel, Scatter, drawn, swept
from experiments.stats import ACCURACY, BYTES, END, SECONDS, Claim

TITLE = "Methods of 2024 to 2026"
NAME = "frontier_2026"
SHORTEST = {"M": 1.0}  # mini-batches of the shortest possible round
BITS, IN_SLICE, SUM = "few_bits", "few_bits_divided", "bf16"
SWEEPS = (
    swept(NAME, "frontier_2026.py", 0.4, seeds=5),
    swept(BITS, "few_bits.py", 0.2, seeds=5),
    swept(IN_SLICE, "few_bits.py:divided", 0.05, seeds=5, last=""),
)
CODECS = {  # group of arms -> its label; claims compare all but the first two with the second
    "float32": "float32", SUM: "bf16", "int8": "int8", "fp8_e4m3": "fp8, E4M3",
    "fp8_e5m2": "fp8, E5M2", "int4": "int4", "mxfp4": "MXFP4",
    "int4_feedback": "int4, error feedback", "mxfp4_feedback": "MXFP4, error feedback",
}  # fmt: skip
SHORT = CODECS | {
    "int4_feedback": "int4, EF", "mxfp4_feedback": "MXFP4, EF", "muon": "Muon, bf16",
    "ef21_muon": "EF21-Muon", "ef21_sgdm": "EF21-SGDM",
}  # fmt: skip
CLAIMS = (
    Claim("the last worker 2x slower: StragglAR takes less time than a ring", "arXiv 2505.23523",
          NAME, "late/straggl_ar", "late/ring", tuned=True),
    Claim("heavy tails: MindFlayer takes at most half the time of rounds that wait for all",
          "arXiv 2410.04285", NAME, "heavy/mindflayer", "heavy/barrier", bound=0.5, tuned=True,
          edges=SHORTEST),
    Claim("heavy tails: MindFlayer takes less time than K-batch-sync", "", NAME,
          "heavy/mindflayer", "heavy/k_batch_sync", tuned=True, edges=SHORTEST),
    Claim("four speeds: ATA takes at most half the time of rounds of equal shares",
          "arXiv 2502.00775", NAME, "unequal/ata", "unequal/barrier", bound=0.5, tuned=True,
          edges=SHORTEST),
    Claim("four speeds: ATA sends at most half the bytes of K-batch-sync", "arXiv 2502.00775", NAME,
          "unequal/ata", "unequal/k_batch_sync", BYTES, 0.5, tuned=True, chosen_by=SECONDS),
    Claim("one slow link: Decoupled DiLoCo takes at most .75 of the time of DiLoCo",
          "arXiv 2604.21428", NAME, "link/decoupled_diloco", "link/diloco", bound=0.75, tuned=True),
    Claim("one slow link: GASLoC takes less time than DiLoCo", "arXiv 2606.11081", NAME,
          "link/gasloc", "link/diloco", tuned=True),
    Claim("one slow link: LOSCAR-SGD takes less time than DiLoCo", "arXiv 2605.20866", NAME,
          "link/loscar", "link/diloco", tuned=True),
    Claim("one slow link: LOSCAR-SGD takes at most the time of Streaming DiLoCo", "", NAME,
          "link/loscar", "link/streaming_diloco", tuned=True),
    *(
        Claim(f"killed workers: {words} takes less time than DiLoCo", source, NAME,
              f"usual_killed/{ours}", "usual_killed/diloco", tuned=True)
        for words, ours, source in (("Decoupled DiLoCo", "decoupled_diloco", "arXiv 2604.21428"),
                                    ("GASLoC", "gasloc", "arXiv 2606.11081"),
                                    ("NoLoCo", "noloco", "arXiv 2506.10911"))
    ),
    Claim("EDiT's penalty takes at most the time of DiLoCo", "arXiv 2412.07210", NAME,
          "usual/edit", "usual/diloco", tuned=True),
    Claim("DSGD-AC is more accurate than D-PSGD", "arXiv 2602.02899", NAME, "apart/dsgd_ac",
          "apart/dpsgd", ACCURACY, tuned=True),
    Claim("5 % of the averages at the end: more accurate than evenly", "arXiv 2507.06542", NAME,
          "budget/late", "budget/even", ACCURACY, tuned=True),
    *(
        Claim(f"{label}: at most 1 % more loss than sums in bf16", "", BITS, codec, SUM, END, 1.01,
              tuned=True, equal=("updates",))
        for codec, label in [*CODECS.items()][2:]
    ),
    *(
        Claim(f"a divided model, at most 1 % more loss than bf16, both ways: {label}",
              "arXiv 2306.10209", IN_SLICE, codec, SUM, END, 1.01, tuned=True, equal=("updates",))
        for codec, label in [*CODECS.items()][2:7]
    ),
    Claim("a control that has to fail: one bit, no feedback: at most 1 % more loss than bf16", "",
          BITS, "sign", SUM, END, 1.01, tuned=True, equal=("updates",)),
    Claim("EF21-Muon, a tenth of all entries both ways: at most 1 % more loss than Muon in bf16",
          "arXiv 2510.00643", BITS, "ef21_muon", "muon", END, 1.01, tuned=True, equal=("updates",)),
    Claim("EF21-Muon ends lower in loss than EF21-SGDM with the same messages", "arXiv 2510.00643",
          BITS, "ef21_muon", "ef21_sgdm", END, tuned=True, equal=("updates",)),
)  # fmt: skip
LINKS = {
    "diloco": "DiLoCo", "edit": "EDiT's penalty", "noloco": "NoLoCo", "gasloc": "GASLoC",
    "swarm": "SwarmSGD", "streaming_diloco": "Streaming DiLoCo", "loscar": "LOSCAR-SGD",
    "decoupled_diloco": "Decoupled DiLoCo",
}  # fmt: skip
RULES = {
    "late/ring": "late worker: ring", "late/straggl_ar": "StragglAR", "late/k_sync": "K-sync",
    "heavy/barrier": "heavy tails: wait for all", "heavy/mindflayer": "MindFlayer",
    "heavy/drop_compute": "DropCompute", "heavy/k_batch_sync": "K-batch-sync",
    "unequal/barrier": "four speeds: wait for all", "unequal/ata": "ATA",
    "unequal/k_batch_sync": "K-batch-sync",
}  # fmt: skip
figure = drawn(
    *(
        Panel(title, NAME, {f"{condition}/{key}": label for key, label in LINKS.items()}, log=True)
        for condition, title in (("usual", "equal links"), ("link", "one slow link"),
                                 ("spells", "spells of all links"),
                                 ("usual_killed", "equal links, killed workers"))
    ),
    Panel("rules and all-reduces", NAME, RULES, log=True),
    Panel("sums of few bits, after the same updates", BITS, CODECS, END),
    Scatter("one slow link: seconds and bytes to the same loss", NAME,
            {f"link/{key}": label for key, label in LINKS.items()}, BYTES, SECONDS),
    Scatter("few bits, error feedback (EF), EF21: loss and bytes", BITS, SHORT, BYTES, END),
)  # fmt: skip
