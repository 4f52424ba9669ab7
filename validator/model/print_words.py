"""Print formats that go by the words and the shapes that lines hold: progress bars, records, and lines with a step.

What a number is must be certain: its name or its unit says so, and nothing around it says that it is an average, or of
a validation. Else it is left out. Each part looks for its words first, so that a line without them costs little, and
none repeats what repeats itself: time grows with the length of a line.
"""

from __future__ import annotations

from validator.model.logged_names import PARTS, key_pattern, step_pattern
from validator.model.moments import MOMENT_IN_WORDS
from validator.model.print_formats import Recipe

MARK = "⊞"
"""Begins a line that is made of a row of a table, `⊞ step=10 loss=3.93` (`print_tables`)."""

_DATE = (
    r"(?:(?<![\d.,/:-])(?:(?=\d{4}[-/]?\d\d[-/]?\d\d[T ,]+\d\d:)"
    r"|(?=\d\d[-/]\d\d(?:[-/]\d\d(?:\d\d)?)?[T ,]+\d\d:)|(?=\d\d\.\d\d\.\d\d(?:\d\d)?[T ,]+\d\d:)"
    rf"|(?<!\w)(?={MOMENT_IN_WORDS})"
    r"|(?<=[IWE])(?=\d{4} \d\d:))"
    r"|(?:^|(?<=^[\[ ])|(?<=\]: ))"
    r"(?:(?=\d\d:\d\d:\d\d(?![:\d]))|(?=1[4-9]\d{8}(?:\d{3})?(?!\d| ?(?:tok|sam|seq|par)))))"
)
"""Where a date begins, or at the start of a line the time of the day or Unix seconds: no percentage, fraction or
counter is one."""

_TO_COME = r"\b(?:eta|ends?|finish\w*|until|remaining|expected|step|epoch|loss)\b"
_DATED = rf"(?:(?!{_TO_COME})[^\n]){{0,60}}?{_DATE}{{timestamp}}"
DATED = rf"(?=(?:{_DATED})?)"
"""A date near the start of a line, where it has one; none of what is to come."""

_NAME = r"(?<![\w/.-])"
_IS = r"[\"')]?[ \t]{0,8}(?:[:=]|is\b)?[ \t]{0,8}"
"""Between a name and its number."""

_OTHER = r"(?:eval(?:uat\w+)?|val(?:id(?:at\w+)?)?|test(?:ing)?|dev)"
_NO_EVALUATION = rf"(?!.{{0,80}}?\b{_OTHER}\b[\])]?[\s:|_-]{{0,3}}(?:step|iter|epoch|batch|set|\d|\[))"
"""The line is not about a validation, whose steps are others."""

_NOT_LOSS = "".join(
    rf"(?<!\b{word} loss)"
    for word in (
        *("val", "valid", "validation", "eval", "evaluation", "test", "dev", "aux", "best", "min"),
        *("avg", "average", "mean", "running", "smoothed", "ema", "epoch"),
        *PARTS,
    )
) + "".join(
    rf"(?<!\b{word} {kind} loss)" for word in ("avg", "average", "mean") for kind in ("train", "training", "batch")
)
_AT_STEP = r"(?: \(?(?:at|for|@) (?:global )?(?:step|iter(?:ation)?|update|batch) {0,8}#?\d+(?:/\d+)?\)?(?= ?[:=]))?"
"""What some put between the loss and its number: `loss at step 5: 2.31`."""

_LOSS = (
    rf"{_NAME}(?:actor/pg_|(?:reduced_)?train(?:ing)?[ _/])?(?:lm[ _]|total[ _]|step_)?"
    rf"(?:loss(?:_total|[_/]train(?:ing)?)?|xent)\b"
    rf"{_NOT_LOSS}(?: train\b| ?\(train(?:ing)?\))?(?: \(curr\))?{_AT_STEP}{_IS}(?:tensor\()?{{loss}}(?![\d.,]*\s?%)"
)

_TOTAL = r"(?:total|all|overall|full|sum|joint|combined)[ _]loss\b"
_TOTAL_OF_PARTS = (
    r"^(?!.*?(?:^|[|,;:)\]\d-]\s{0,4})(?:train(?:ing)?[ _])?loss\b)"
    rf"(?=.*?\bloss\b.*?(?<![\w/]){_TOTAL}).*?"
)
"""A total behind its parts: each loss of the line has another word before it."""

_OF_ACTOR = rf"{_NAME}actor/loss\b"
"""verl's whole loss, which has parts beside it."""

_OTHER_NAMES = (
    _NAME
    + "".join(
        rf"(?<!\b{word} )" for word in ("val", "valid", "validation", "eval", "test", "dev", "best", "avg", "mean")
    )
    + rf"(?:train[_ ])?(?:mse|nll|bce)\b{_IS}{{loss}}"
)
"""A loss by the name of its function, where a line has none by that name."""

_MEAN_REWARD = (
    rf"{_NAME}(?:(?:mean|avg|average)[_ ](?:episode[_ ])?(?:reward|return)"
    rf"|ep(?:isode)?[_ ](?:rew(?:ard)?_mean|reward|return))\b{_IS}{{mean_reward}}"
)
"""What episodes reach on average, by which an agent is judged."""

_REWARD = r"(?:rewards?|returns?|scores?)\b"
_ANY_REWARD = (
    rf"(?:(?=.*?\b(?:mean|avg\.?|average|running|moving)[ _-](?:\w{{1,12}}[ _]){{0,2}}{_REWARD}{_IS}{{mean_reward}})"
    r"|(?=.*?(?<!best[ _])(?<!max[ _])(?<!min[ _])(?<!highest[ _])"
    rf"(?<![a-z])(?:(?:total|episode|ep|last|cumulative|train(?:ing)?)[ _])?{_REWARD}{_IS}{{mean_reward}}))"
)
"""The mean of several episodes, or else what one of them reached."""

_LR = rf"(?<![a-z_])(?:lr|learning[ _]rate)\b{_IS}{{lr}}"

_VAL_LOSS = (
    rf"{_NAME}(?<!best )(?<!min )(?<!smoothed )(?:(?:avg|average|mean)[ _])?"
    r"(?:(?:val(?:id(?:ation)?)?|eval(?:uation)?|dev|test)[ _/]loss|loss_(?:val(?:id(?:ation)?)?|dev|test))\b"
    rf"{_IS}{{val_loss}}(?![\d.,]*\s?%)"
)


def _optional(part: str, *, needs: str = "", unless: str = "") -> str:
    """The part anywhere in the line, or not at all; it is looked for where the line holds what it `needs`, and not what
    it is left out by."""
    first = (rf"(?=.*?{needs})" if needs else "") + (rf"(?!.*?{unless})" if unless else "")
    return rf"(?=(?:{first}.*?{part})?)"


MEANS = (
    r"\b(?:avg|average|mean|running|smoothed|overall|ema|median|min|max|best|peak|eta|remaining|local|input|output|prompt"
    r"|prefill|decode|per[-_ ](?:gpu|device|rank)|(?:eval|val|validation|inference)[ _]"
    r"(?:tok|throughput|speed|time|sample|example|seq|image|img))"
)
"""A pattern of words before a number that is an average, of a part, or still to come."""
_PARTS = r"\b(?:data|fwd|bwd|forward|backward|optim\w*|load\w*|comm\w*|wait|sync|io|h2d)\b"


def _segment_without(words: str) -> str:
    """From a separator to the next number, past none of these words: it is an average, of a part, or still to come."""
    return rf"(?:^|[|,;(\[\t]| - )(?:(?!{words}| - )[^|,;(\[\t])*?"


_WITHIN, _WITHIN_TIMES = _segment_without(MEANS), _segment_without(f"{MEANS}|{_PARTS}")
_NO_MEAN_BEHIND = r"(?!\d|\.\d|[kKMG]\b|\s?\(?(?:avg|average|mean)\s?(?:[|,;)]|$))"
_NO_GROUP = r"(?!(?:(?<=[^\d.,]\d )|(?<=[^\d.,]\d\d )|(?<=[^\d.,]\d\d\d ))\d{3}(?!\d))"
"""Three digits behind a blank and a number may belong to it, as in `12 345 tok/s`."""

_PER_RANK = r"(?:(?:/|_per_| per | / )(?:gpu|device|rank|chip|card|npu|tpu|core)s?\b)"
_RATE = r"tok(?:en)?s?(?:/|_per_| per | / )s(?:ec(?:ond)?)?"
_SAMPLES = r"(?:samples?|records?|ex(?:amples?)?|sequences?|seqs?|images?|imgs?)(?:/|_per_| per | / )s(?:ec(?:ond)?)?"
RATE_UNITS = {
    "toks_per_s": rf" ?{_RATE}(?!\w)(?!{_PER_RANK})",
    "samples_per_s": rf" ?{_SAMPLES}(?!\w)(?!{_PER_RANK})",
}
"""Patterns of what stands behind a number that is a rate."""
_A_STEP = r"(?: ?/ ?| per )(?:step|it|iter|iteration|batch)\b"
_STEPS_A_S = r"(?:it(?:er(?:ation)?)?|step|batch)(?:e?s)?(?:/| per |_per_)s(?:ec(?:ond)?)?\b"
_ITS_TIME = (
    rf"{_NAME}(?:dt|(?:step|iter|iteration|batch)[_ ]time|time(?:/|[_ ]per[_ ])(?:step|iter|iteration|batch)"
    r"|(?:elapsed_)?time_per_iteration|train_step_timing|timing_s/step)"
)


_OTHERS_OF_TIME = r"time|took|elapse|duration|eta\b|remain|left|(?<![a-z])dt\b|/ ?s|s/|[ _]per[ _]|wait|load|data|fetch"


def _per(group: str, unit: str) -> str:
    """A number before its unit, `21 ms/step`, or behind it, `ms/step: 21`. Between two numbers, as in `loss 2.3 ms/step
    21`, the unit belongs to neither, unless a sign or the lack of a label says to which."""
    number = f"{{{group}}}"
    before = rf"(?<![\w.,/])(?:(?<![A-Za-z] ){number} ?{unit}|{number} ?{unit}(?!\s+[\d.]))(?![\"']?\s*[:=]\s*[\d.])"
    behind = rf"(?<![a-z/])(?:{unit}[\"')]?\s?[:=]\s{{0,8}}|(?<![\d.] )(?<![\d.]){unit}\s+){number}"
    return rf"{_WITHIN_TIMES}(?:{before}|{behind}){_NO_MEAN_BEHIND}"


def _rate(group: str, unit: str) -> str:
    number = f"{{{group}}}"
    before = rf"(?<![\w.,/+-]){_NO_GROUP}{number} ?{unit}(?!\w)(?![\"')]?\s{{0,8}}[:=])(?!\s+[\d.])"
    behind = rf"(?<![\w/.-]){unit}[\"')]?(?:[ \t]{{0,8}}[:=][ \t]{{0,8}}|[ \t]+){number}"
    behind += r"(?![\d.]|'\d| \d{3}(?!\d)|\s?(?:%|[kKMG]\b|[a-zA-Z]+/))"
    return rf"{_WITHIN}(?:{before}|{behind}){_NO_MEAN_BEHIND}"


_VALUES = "".join(
    (
        _optional(_LOSS, needs="(?:loss|xent)", unless=rf"(?:{_TOTAL_OF_PARTS}|{_OF_ACTOR})"),
        _optional(rf"{_NAME}{_TOTAL}{_IS}{{loss}}", needs=_TOTAL_OF_PARTS),
        _optional(rf"{_OF_ACTOR}{_IS}{{loss}}", needs="actor/loss"),
        _optional(_OTHER_NAMES, needs="(?:mse|nll|bce)", unless="(?:loss|xent)"),
        _optional(_MEAN_REWARD, needs="(?:rew|return)"),
        _optional(_VAL_LOSS, needs="(?:val|dev|test)"),
        _optional(rf"(?<![a-z])(?:grad(?:ient)?[_ ]?norm|gnorm|(?<![_/])norm)\b{_IS}{{grad_norm}}", needs="norm"),
        _optional(_LR, needs="(?:lr|learning)"),
        _optional(_rate("toks_per_s", rf"{_RATE}(?!{_PER_RANK})"), needs="tok"),
        _optional(_rate("toks_per_s_per_rank", rf"{_RATE}{_PER_RANK}"), needs="tok"),
        _optional(
            _rate("samples_per_s", rf"{_SAMPLES}(?!{_PER_RANK})"),
            needs="(?:sample|record|ex(?:ample)?|seq(?:uence)?|image|img)s?[/_ ]",
        ),
        _optional(rf"{_NAME}ips\b{_IS}{{samples_per_s}}(?! ?(?:tok|steps?/|it/))", needs="ips"),
        _optional(rf"{_WITHIN}(?<![\w.,/+-]){{ktoks_per_s}} ?(?:k|K) ?{_RATE}(?!\w)(?!{_PER_RANK})", needs="k ?tok"),
        _optional(
            rf"{_WITHIN_TIMES}{_ITS_TIME}(?:(?:_ms|[ _]?\(ms\)){_IS}{{step_time_ms}}|{_IS}{{step_time_ms}} ?ms\b)",
            needs="ms",
        ),
        _optional(
            rf"{_WITHIN_TIMES}{_ITS_TIME}(?:(?:_s|[ _]?\(s\)| in s){_IS}{{step_time_s}}"
            rf"|{_IS}{{step_time_s}} ?s(?:ec\w*)?\b|(?<=timing_s/step):{{step_time_s}})",
            needs="(?:dt|time|timing)",
        ),
        # PaddlePaddle's, means of the steps since the line before; of an epoch's first step a part of one.
        _optional(
            rf"{_NAME}(?:avg_)?batch_cost{_IS}{{step_time_s}} ?s(?:ec)?\b",
            needs="batch_cost",
            unless=r"\bbatch_id: 0\b",
        ),
        _optional(rf"{_NAME}(?:(?:avg_)?reader|data)_cost{_IS}{{own_dt_fetch_s}} ?s(?:ec)?\b", needs="_cost"),
        _optional(_per("step_time_ms", rf"ms{_A_STEP}"), needs="ms"),
        _optional(_per("step_time_s", rf"s(?:ec(?:ond)?s?)?{_A_STEP}"), needs=r"s(?:ec(?:ond)?s?)?(?: ?/| per)"),
        _optional(_per("steps_per_s", _STEPS_A_S), needs=r"(?:/| per |_per_)s"),
        _optional(
            r"(?<![A-Za-z])(?<![A-Za-z][ _/.-])(?:(?:(?:total|run(?:ning)?|wall(?:[- _]clock)?)[ _-]?)?time|took"
            rf"|elapse|seconds|duration)\b{_IS}"
            r"(?:{any_time_ms} ?ms\b|{any_time} ?s(?:ec\w*)?\b|(?<=seconds: ){any_time})",
            needs="(?:time|took|elapse|seconds|duration)",
        ),
        # A duration that no word names, in a cell or in brackets of its own, where nothing else is about time.
        _optional(
            r"[|,;(\[\t]\s{0,4}(?:{any_time_ms} ?ms(?:ec\w*)?|{any_time} ?s(?:ec(?:ond)?s?)?)\s{0,4}(?:$|[|,;)\]\t])",
            needs=r"\d ?m?s(?:ec|(?![a-z]))",
            unless=rf"(?:{_OTHERS_OF_TIME})",
        ),
        _optional(
            rf"{_NAME}elapsed(?:[ _]time)?{_IS}(?=\d+:\d\d|[\d.,]+ ?s(?:ec\w*)?\b){{elapsed_s}}", needs="elapsed"
        ),
    )
)

_DATA_OF_METERS = _optional(r" time: [\d.]{1,12} {1,4}data: {own_dt_fetch_s}(?!\S)", needs=" data: ")
"""The wait for data by the meters of torchvision, DETR and MAE: a mean of 20 steps, however far apart the lines are."""

_STEP_END = r"(?![\w%]|\.\d|,\d{3}\b|\s?(?:%|(?:ms|s|sec|seconds)\b))"
_NOT_A_STEP = "".join(
    rf"(?<!\b{word} )"
    for word in ("per", "max", "total", "num", "of", "every", "best", "warmup", "micro", "inner", "accumulation")
)
_EPOCH = r"(?=(?:.{0,100}?\b(?:epoch\b|iteration\b(?=[:= ]{1,3}\d+ step:\d+/))[^\w\n]{0,4}{epoch}(?![\d.,]*[\d%]))?)"
"""The number of an epoch, which some call an iteration: `iteration:2 step:300/1687`."""


def _step(names: str) -> str:
    """The step behind one of these names; with the number of an epoch in the line, also how many steps that has."""
    length = r"(?(epoch)(?: ?/ ?{steps_per_epoch}\b)?|)"
    name = rf"{_NAME}{_NOT_A_STEP}(?:{names})\b[\"']?(?:\(train\))?"
    return rf"(?=.*?{name}\s{{0,8}}[:=#\[]?\s{{0,8}}{{step}}{length}{_STEP_END})"


_BY_LOGGER = r"(?:[^\n|]{0,160}?(?:\b(?:INFO|DEBUG|root)\b|__main__)\W{1,4})?(?:\[[A-Za-z][^\]\n]{0,20}\]\W{0,4})?"
"""What a logger puts before a line, with or without a date."""

_STEPS = (
    (
        "step and loss",
        r"(?:train(?:er|ing)?[ _/])?(?:global[ _]?|optimizer[ _]|current_)?steps?|num_updates",
        ("step", "num_upd"),
    ),
    ("iteration and loss", r"iter(?:ation)?s?|itr|updates?|it", ("iter", "itr", "update", "it=", "it ", "it:")),
    ("batch and loss", "batch(?:_id)?", ("batch",)),
)
"""Names of what counts, the more certain first: beside a step, an iteration or a batch may be a part of one."""

# Bars of tqdm, ` 49%|████      | 149/300 [01:59<02:02,  1.24it/s, loss=3.028]`, which count steps and not samples.
_UNIT = r"(?:it|step|batch|ba|iter|update)(?:e?s)?"
_OF_TRAINING = (
    rf"(?![^\n]{{0,80}}?\b(?:{_OTHER}|sanity|predict\w*|generat\w+)\b[^|\n]*\d%\|)(?![^|\n]*\bepochs?\W{{0,6}}\d+%\|)"
)
_BAR = (
    r"\d%\|[^|\n]*\| *(?!0/)(?(epoch){step}/ *{steps_per_epoch}|{step}/ *(?={steps_total}){steps_per_epoch}) "
    rf"\[{{elapsed_s}}<[^,\]]*, *[\d.?]+ ?(?:{_UNIT}/s|s/{_UNIT})"
)
_LOSS_IN_BAR = (
    r"(?:(?=[^\]]*?(?<![\w/])(?:reduced_train_loss|train[_/]loss(?:_step)?|loss_step|loss/train/total)[=:] ?{loss})"
    r"|(?=[^\]]*?(?<![\w/])(?:(?:step|avr|avg_epoch|total|lm)_)?loss[=:] ?{loss}))"
)
_IN_BAR = rf"(?(epoch)|(?![^\]]*?\b{_OTHER}[_/ ]loss))" + _LOSS_IN_BAR
"""Beside the loss of a validation, what counts may be epochs."""

_BEFORE_BAR = rf"(?=[^%\n]{{0,300}}?(?<![\w/])(?:train[_/ ])?loss\b{_NOT_LOSS}{_IS}{{loss}}(?![\d.]*%)[^%\n]*%\|)"

BARS: tuple[Recipe, ...] = (
    Recipe(
        "progress bar",
        ("it/s", "s/it", "%|", "it ["),
        rf"(?i)^{_OF_TRAINING}{_EPOCH}"
        rf"(?:(?=.{{0,300}}?{_BAR}(?:, |: ?)?{_IN_BAR})|{_BEFORE_BAR}(?=.{{0,300}}?{_BAR})"
        rf"|(?:[^|\n]{{0,80}}?: )?{{step}}it \[{{elapsed_s}}, *[\d.?]+(?:it/s|s/it){_IN_BAR})",
        "tqdm with a loss behind or before it; `it/s` is a running average and is not used",
    ),
    Recipe(
        "progress bar of epochs",
        ("epochs",),
        r"(?i)^[^|\n%]{0,80}?\bepochs\W{1,6}\d+%\|[^|\n]*\| *(?!0/){step}/ *{steps_total} "
        rf"\[{{elapsed_s}}<[^,\]]*, *[\d.?]+ ?(?:(?:it|epochs?)/s|s/(?:it|epoch))(?:, |: ?)?{_LOSS_IN_BAR}",
        "tqdm that counts epochs, with a loss behind it",
        by_epochs=True,
    ),
)


_EVALUATION_KEY = (
    r"[\"'](?=[\w ./-]{0,80}[\"']: ?\{)"
    r"(?:[\w ./-]{0,40}[/._ -])?(?:eval(?:uation)?|val(?:id(?:ation)?)?|test|dev)(?:[/._ -][\w ./-]{0,40})?"
    r"[\"']: ?\{"
)
_OUTSIDE_EVALUATION = (
    rf"[^\"']*(?:(?:(?!{_EVALUATION_KEY})[\"']|{_EVALUATION_KEY}(?:[^{{}}]|\{{[^{{}}]*\}})*\}})[^\"']*)*?"
)
"""Past any objects that are about an evaluation, in `{"step": 3, "eval": {"loss": 2.9}, "train": {"loss": 3.1}}`."""


def _record_value(group: str, *keys: str) -> str:
    """A number of a record by the first of these expressions for its key, or none."""
    found = "|".join(rf"""{_OUTSIDE_EVALUATION}["']{key}["']: ?"?{{{group}}}""" for key in keys)
    return rf"(?=(?:{found})?)"


_RECORD_VALUES = "".join(
    (
        *(
            _record_value(group, key_pattern(group), key_pattern(group, certain=False))
            for group in ("loss", "toks_per_s", "elapsed_s", "samples_per_s", "step_time_ms")
        ),
        *(
            _record_value(group, key_pattern(group))
            for group in (
                "val_loss",
                "grad_norm",
                "lr",
                "toks_per_s_per_rank",
                "step_time_s",
                "steps_per_s",
                "timestamp",
            )
        ),
        _record_value("any_time", "time", "(?:sec(?:ond)?s?|duration(?:_s)?)"),
        _record_value("any_time_ms", "time_ms"),
    )
)

_COLUMNS = "".join(
    rf"(?=(?:.* {name}={{{name}}}(?!\S))?)"
    for name in (
        *("loss", "lr", "grad_norm", "val_loss", "toks_per_s", "toks_per_s_per_rank", "step_time_s", "step_time_ms"),
        *("elapsed_s", "timestamp", "mean_reward"),
    )
)

TABLES: tuple[Recipe, ...] = (
    Recipe(
        "table with names",
        (MARK,),
        rf"^{MARK} step={{step}}(?= )(?=(?: epoch={{epoch}})?){_COLUMNS}",
        "rows of numbers below a line of names, or boxes of names and numbers",
    ),
    Recipe("table of epochs", (MARK,), rf"^{MARK} epoch={{step}}(?= ){_COLUMNS}", "a row an epoch", by_epochs=True),
)

RECORDS: tuple[Recipe, ...] = (
    Recipe(
        "records",
        ("step", "iter"),
        r"(?i)^(?=.*?\{)(?!(?=.*?[\"']total_flos[\"']).*?[\"']train_loss[\"'])(?:"  # of a whole run
        + "|".join(
            rf"""(?={_OUTSIDE_EVALUATION}["']{step_pattern(whole=whole)}["']: ?{{step}}\b)""" for whole in (True, False)
        )
        + ")"
        + _RECORD_VALUES,
        "one JSON object, or one dictionary of Python, a line",
    ),
    Recipe("table", ("\t", " train ", " val "), r"^{step}(?:(?:\t| train ){loss}| val {val_loss})\s*$"),
)

GENERAL: tuple[Recipe, ...] = (
    *(
        Recipe(
            name,
            words,
            rf"(?i)^(?!.*?\d%\|){_NO_EVALUATION}{DATED}{_EPOCH}{_step(names)}{_VALUES}",
            "recognized by the words in it; give a pattern where it is mistaken",
        )
        for name, names, words in _STEPS
    ),
    Recipe(
        "epoch and step in brackets",
        ("[", "epoch"),
        rf"(?i)^(?!.*?\d%\|){_NO_EVALUATION}{DATED}"
        r"(?=.*?(?:\[(?:epoch)? ?{epoch}(?:/\d+)?\]\s{0,4}\[(?:iter:)? {0,8}{step}/ {0,8}{steps_per_epoch}\]"
        r"|\[ ?{epoch}, {0,8}{step}\]|\bepoch:? {epoch}(?:/\d+)? ?\[ *{step}/ *{steps_per_epoch}\]"
        r"|\bepoch:? {epoch}/\d+[ ,|:]{1,6}(?:(?:step|batch|iter)\w*:? )?{step}/ *{steps_per_epoch}(?![\d/])))"
        + _DATA_OF_METERS
        + _VALUES,
        "recognized by its shape; give a pattern where it is mistaken",
    ),
    Recipe(
        "epochs",
        ("epoch",),
        rf"(?i)^(?!.*?\d%\|)(?!.*\d ?/ ?\d+ ?\(){DATED}{_BY_LOGGER}"
        r"\W*(?:train\W+)?epoch\W*{step}\b(?!\.\d)(?!.*\bbatch)"
        + ".*?"
        + "".join(rf"(?<!{word}[ _])" for word in ("val", "valid", "validation", "eval", "evaluation", "test", "dev"))
        + r"(?:\b|(?<=train_)|(?<=avg_)|(?<=average_)|(?<=mean_))loss(?:_tr(?:ain(?:ing)?)?)?\W+{loss}"
        + _optional(_VAL_LOSS, needs="(?:val|dev|test)")
        + _optional(_LR, needs="(?:lr|learning)"),
        "a row an epoch",
        by_epochs=True,
    ),
    Recipe(
        "loss only",
        ("loss",),
        rf"(?i)^(?!.*?\b(?:average|avg|mean)\b.{{0,20}}\bloss)(?!.*?\d%){_NO_EVALUATION}"
        rf"(?!.*?(?<![\d/])\d+ ?/ ?\d+(?!\d|/| \d\d:)){{row}}(?={_DATED}).*?"
        rf"(?<![\w/])loss\b{_NOT_LOSS}\s{{0,8}}[:=]\s{{0,8}}{{loss}}",
        "no step is printed: lines are counted",
    ),
    Recipe(
        "mean loss of epochs",
        ("loss",),
        rf"(?i)^(?!.*?\d%\|){{row}}(?:(?={_DATED}))?[^\n]{{0,120}}?(?<![\w/])"
        r"(?:train(?:ing)?[ _](?:mean|average|avg)[ _]loss|(?:mean|average|avg)[ _]train(?:ing)?[ _]loss)"
        rf"{_IS}{{loss}}",
        "a row an epoch",
        by_epochs=True,
    ),
    Recipe(
        "parts of epochs",
        ("epoch",),
        rf"(?i)^(?!.*?\d%){_NO_EVALUATION}{{row}}{DATED}.{{0,60}}?(?<![\w/.-])epoch\b{_IS}\d+\.\d+(?![\w.%]).*?{_LOSS}",
        "the epoch alone is printed, as a fraction: lines are counted",
    ),
    Recipe(
        "episodes of an agent",
        ("episode", "ep ", "ep:", "ep="),
        rf"(?i)^(?!.*?\d%\|){_NO_EVALUATION}{DATED}"
        rf"(?=.{{0,100}}?{_NAME}(?:train(?:ing)?[ _])?ep(?:isodes?)?\b[\"']?\s{{0,4}}[:=#\[(]?\s{{0,4}}{{step}}"
        rf"(?: ?/ ?\d+\b)?{_STEP_END}){_ANY_REWARD}" + _optional(_LOSS, needs="loss"),
        "a row an episode, or of several; the agent is judged by its return",
    ),
)
