"""Print formats of one trainer, or of one family, each."""

from __future__ import annotations

from typing import NamedTuple

LINE = r"^(?:\[(?:rank|default)?\d+\]: ?|\d+: )?"
"""Where a line begins: behind the rank that torchrun or srun may write."""

_UNIT = r"(?: [A-Za-z]{2,5}\b)?"
"""Behind a loss: BPC, bits, nats."""
_OF_NANOGPT = rf"|\bstep {{step}}: train loss {{eval_train_loss}}{_UNIT}, val loss {{val_loss}}"


class Recipe(NamedTuple):
    """A known print format. `words` are texts of which every line holds at least one, in lower case. With
    `by_epochs` a row is an epoch."""

    name: str
    words: tuple[str, ...]
    pattern: str
    about: str = ""
    by_epochs: bool = False


KNOWN: tuple[Recipe, ...] = (
    Recipe(
        "llm.c",
        (" tok/s",),
        r"step +{step}/{steps_total} \| (?:train )?loss +{loss} .*?norm +{grad_norm} .*?lr +{lr} \| +{step_time_ms} ms"
        r"(?:.*? {smoothed_toks_per_s} tok/s)?|^val loss {val_loss}",
        "`ms` is the step's own time; `tok/s` is a running average and no rate",
    ),
    Recipe("llm.c main.log", ("trl:",), r"^s:{step} (?:trl:{loss}|tel:{val_loss})", "no time is printed"),
    Recipe("nanoGPT", ("iter ",), rf"iter {{step}}: loss {{loss}}{_UNIT}, time {{own_step_time_ms}}ms" + _OF_NANOGPT),
    Recipe("minGPT", ("iter_dt",), r"iter_dt {own_step_time_ms}ms; iter {step}: train loss {loss}"),
    Recipe(
        "modded-nanogpt",
        ("train_time:", " t:"),
        r"^step:{step}/{steps_total}(?= )(?=(?:.*? (?:train_loss|loss):{loss})?)(?=(?:.*? val_loss:{val_loss})?)"
        r".*? (?:train_time|t):{elapsed_ms}ms",
        "`train_time` runs over the whole training and stands still during validation",
    ),
    Recipe(
        "parameter-golf",
        ("train_time: ",),
        r"^{step}/{steps_total} train_loss: {loss} train_time: {elapsed_min}m",
        "`train_time` runs over the whole training; `tok/s` is a mean since the start and is not used",
    ),
    Recipe(
        "nanochat",
        ("tok/sec:",),
        r"^step {step}(?:/{steps_total})? \([\d.]+%\) \| loss: {loss} .*?dt: {step_time_ms}ms \| tok/sec: {toks_per_s}"
        r"|^Step {step} \| Validation bpb: {val_loss}",
        "the loss of a validation is in bits per byte",
    ),
    Recipe(
        "nanochat SFT",
        ("training loss:",),
        r"^Step {step}(?:/{steps_total} \| Training loss: {loss}| \| Validation loss: {val_loss})",
        "no time",
    ),
    Recipe(
        "Megatron-LM",
        ("elapsed time per iteration", "batch-generator"),
        r"(?:\[{timestamp}\] +)?iteration +{step}/ *{steps_total} \|.*?elapsed time per iteration "
        r"(?:\(ms\): {step_time_ms}|\(s\): {step_time_s})(?:/[\d.]+)?"
        r"(?=(?:.*?learning rate:? {lr})?)(?=(?:.*?lm[ _]loss:? {loss})?)"
        r"(?=(?:.*?grad norm: {grad_norm})?)(?=(?:.*?number of nan iterations: +{nan_iterations})?)"
        r"|^ +batch-generator \.+: \([\d.]+, {dt_fetch_ms}\)|^time \(ms\) \|.*? batch-generator: {dt_fetch_ms}"
        r"|\bvalidation (?:loss|results) at iteration {step}(?: on validation set)? \| lm[ _]loss value: {val_loss}",
        "the time is the mean over the iterations since the line before; a line of NaN iterations prints no loss; the "
        "timer of the data is on a line behind it, where it is printed",
    ),
    Recipe(
        "DeepSpeed",
        ("currsamplespersec",),
        r"^(?:\w+: )?\[{timestamp}\].*global_step={step}, .*CurrSamplesPerSec={samples_per_s}",
    ),
    Recipe("DeepSpeed steps", ("iter time",), r"steps: {step} loss: {loss} iter time \(s\): {step_time_s}"),
    Recipe(
        "DeepSpeed-Chat",
        ("act_loss", "e2e latency"),
        r"^epoch: {epoch}\|step: {step}\|.*?act_loss: {loss}\|cri_loss: {critic_loss}|^\|E2E latency={step_time_s}s",
        "the time is on a line of its own, behind the step's",
    ),
    Recipe("DeepSpeed log", ("skipped=",), r"^\[{timestamp}\].*\[Rank 0\] step={step}, skipped="),
    Recipe(
        "torchtitan",
        (" tps:",),
        r"(?<!validate )step: +{step} +loss: +{loss}(?=(?:.*? grad_norm: +{grad_norm})?)"
        r".*? tps: +{toks_per_s_per_rank}|validate step: +{step} +loss: +{val_loss}",
    ),
    Recipe(
        "Hugging Face Trainer",
        ("it/s", "s/it", "'loss'"),
        r"^ *\d+%\|[^|]*\| {step}/{steps_total} \[{elapsed_s}<[^,]*, +[\d.?]+(?:it/s|s/it)\](?:\{'loss': '?{loss})?"
        r"|\{'loss': '?{loss}(?=(?:.*?'grad_norm': '?{grad_norm})?)(?=(?:.*?'learning_rate': '?{lr})?)"
        r"|\{'eval_loss': '?{val_loss}",
        "the step comes from the progress bar, the loss from the line behind it",
    ),
    Recipe(
        "Hugging Face Trainer, without its progress bar",
        ("'loss'",),
        r"{row}\{'loss': '?{loss}(?=(?:.*?'grad_norm': '?{grad_norm})?)(?=(?:.*?'learning_rate': '?{lr})?)"
        r"|\{'eval_loss': '?{val_loss}",
        "no step is printed: lines are counted",
    ),
    Recipe(
        "Lightning progress bar",
        ("it/s", "s/it"),
        r"^(?:Training|Epoch) +{epoch}: +(?:: +)?\d+%\|[^|]*\| (?!0/){step}/{steps_per_epoch} \[{elapsed_s}<"
        r"(?=(?:[^\]]*?(?<![\w/])val(?:id(?:ation)?)?[_/]loss(?:_epoch)?={val_loss})?)"
        r"(?:(?=[^\]]*?(?<![\w/])(?:reduced_train_loss|train[_/]loss(?:_step)?|loss_step)={loss})"
        r"|[^\]]*?(?<![\w/])loss={loss})",
        "a `loss` beside the step's own is its running mean; that of the validation stays in the bar until the next "
        "one; `it/s` is a running average and is not used",
    ),
    Recipe(
        "Lightning rich progress bar",
        ("it/s",),
        r"^Epoch {epoch}/-?\d+ [^\w]*? (?!0/){step}/{steps_per_epoch} {elapsed_s} • \S+ +\S+it/s"
        r"(?:.*?(?<![\w/])(?:train_|train/)?loss(?:_step)?: {loss})?"
        r"|^ {16,}(?:train_|train/)?loss(?:_step)?: {loss}",
        "outside a terminal it prints one line, when the run has ended",
    ),
    Recipe(
        "Keras",
        ("/step", "eta:"),
        r"{step}/{steps_per_epoch} \[?[━=>.]+\]?(?: -)? (?:ETA: )?\S+"
        r"(?: (?:{mean_step_time_ms}ms|{mean_step_time_s}s|\d+us)/step)? - (?:\w+: [\d.e+-]+ - )*?loss: {loss}"
        r"(?=(?:.*? val_loss: {val_loss})?)",
        "time and loss are means since the epoch's start",
    ),
    Recipe(
        "records of epochs",
        ('"train_loss":',),
        r"^\{(?=.*?\"epoch\": {step}[,}])(?!.*?\"(?:\w+_)?(?:step|iter|iteration)s?\": \d)"
        r"(?=.*?\"train_loss\": {loss}[,}])"
        r"(?=(?:.*?\"(?:test|val|valid|eval)_loss\": {val_loss})?)(?=(?:.*?\"train_lr\": {lr})?)",
        "`log.txt` of DeiT, DETR and MAE",
        by_epochs=True,
    ),
    Recipe(
        "Keras, a line an epoch",
        ("/step", "s - "),
        r"^{row}(?:(?:\d+/\d+| -) (?:\[?[━=]+\]? )?(?:- )?)?\d+s (?:\d+[mu]?s/step )?- (?:[\w./]+ - )?"
        r"(?:\w+: [\d.e+-]+ - )*?loss: {loss}"
        r"(?=(?:.*? val_loss: {val_loss})?)",
        "a row an epoch",
        by_epochs=True,
    ),
    Recipe(
        "GNMT",
        ("tok/s",),
        r"^(?:0: )?TRAIN \[{epoch}\]\[{step}/{steps_per_epoch}\]\s+Time {own_step_time_s} \({mean_step_time_s}\)"
        r"(?=(?:.*?\sData \S+ \({mean_dt_fetch_s}\))?).*?Tok/s {toks_per_s_per_rank} \(.*?Loss/tok {loss} ",
        "the time is that of one step in ten, its running mean that of all steps, the rate that of rank 0",
    ),
    Recipe(
        "PyTorch examples",
        ("time",),
        r"(?i)(?:Epoch|Train): \[{epoch}(?:/\d+)?\]\[ *{step}/{steps_per_epoch}\]"
        r"(?=(?:.*?\sData(?:[ _]?time)?:? +[\d.e+-]+ \( *{mean_dt_fetch_s}\))?)"
        r".*?\sTime:? +{own_step_time_s} \(.*?\sLoss:? +{loss} \(",
        "the time is that of one step, the wait for data a running mean since the epoch's start",
    ),
    Recipe(
        "Darknet",
        (" rate, ",),
        r"^ *{step}: {loss}, \S+ avg(?: loss)?, {lr} rate, {step_time_s} seconds, \d+ images",
        "the loss is that of one batch, not its running mean",
    ),
    Recipe(
        "HRNet",
        ("iter:[",),
        r"Epoch: \[{epoch}/\d+\] Iter:\[{step}/{steps_per_epoch}\], Time: {mean_step_time_s}, lr: .*?, Loss: {loss}"
        r"|^(?:.*?INFO)?\W*Loss: {val_loss}, MeanIU:",
        "the time is a mean since the epoch's start",
    ),
    Recipe(
        "DLRM",
        ("step_time",),
        r"Epoch:\[{epoch}/\d+\] \[{step}/{steps_per_epoch}\].*?loss: {loss} +step_time: {step_time_ms} ms",
    ),
    Recipe(
        "SSD", ("loss function",), r"Iteration: +{step}, Loss function: {loss}, .*avg\. samples / sec: {samples_per_s}"
    ),
    Recipe(
        "CycleGAN",
        ("iters: ",),
        r"^\(epoch: {epoch}, iters: {step}, time: {own_step_time_s}(?:, data: {own_dt_fetch_s})?[^)\n]*\)"
        r"(?=(?:.*?\b(?:cycle_A|G_L1): {loss})?)",
        "and pix2pix: steps and times are of images, and the loss is that of what is drawn again; those of generator "
        "and discriminator are lowered against each other",
    ),
    Recipe(
        "MXNet",
        ("samples/sec",),
        r"^{timestamp} (?:Node\[0\]|\w+ -) Epoch\[{epoch}\] Batch \[(?:\d+-)?{step}\]\s+"
        r"Speed: {samples_per_s} samples/sec"
        r"(?=(?:.*?\b(?:Train-)?(?:\w*[lL]oss|[cC]ross-?[eE]ntropy)={loss})?)",
    ),
    Recipe(
        "MiniMind",
        ("epoch:[",),
        r"Epoch:\[{epoch}/\d+\]\({step}/{steps_per_epoch}\)(?=(?:.*?(?:, |Actor )[lL]oss: {loss})?)"
        r"(?=(?:.*?(?:learning_rate|lr|LR): ?{lr})?)",
        "`epoch_time` is the time that remains and is not used",
    ),
    Recipe(
        "detectron2",
        ("total_loss",),
        r"^\[{timestamp}[^\]]*\].* iter: {step} +total_loss: {loss} (?=(?:.*?\bdata_time: {dt_fetch_s})?)"
        r"(?=(?:.*?\b(?:val(?:idation)?_(?:total_)?loss|total_val_loss): {val_loss})?).*?lr: {lr}",
        "the date gives the time, pauses included; `time` is an average and is not used; `data_time` is the mean of "
        "the last 20 steps",
    ),
    Recipe(
        "MLPerf GPT-3",
        ("train_step_timing",),
        r'{row}:::MLLOG .*"time_ms": {timestamp}, .*"train_step_timing": {step_time_s}, '
        r'"reduced_train_loss": {loss}\}.*"step": {tokens_seen}',
        "its steps count tokens; the fewest between two lines are one step",
    ),
    Recipe(
        "MLPerf loss",
        ("train_loss",),
        r'{row}:::MLLOG .*"time_ms": {timestamp},.*"key": "train_loss", "value": {loss},.*'
        r'"samples_count": {samples_seen}',
        "its steps count samples; the fewest between two lines are one step",
    ),
    Recipe(
        "MaxText",
        ("completed step",),
        r"^(?:[IWE]{timestamp} [^\]]*\] )?completed step: {step}, seconds: {step_time_s}, .*?"
        r"(?=(?:.*?Tokens/s/device: {toks_per_s_per_rank})?)(?=.*?loss: {loss})"
        r"(?=(?:.*?total_weights: {tokens_per_step})?)"
        r"|\beval metrics after step: {step}, loss={val_loss},",
    ),
    Recipe(
        "OLMo and Composer",
        ("[step=", "[batch=", "train/", "optim/", "throughput/"),
        r"^(?:.{0,20}?(?=\d{4}-\d\d-\d\d[T ]){timestamp}\b.{0,120}?)?\[(?:step|batch)={step}/[\d,]+"
        r"|^\s+(?:Train )?(?:train/CrossEntropyLoss|train/CE loss|loss/train/total)[=:] ?{loss}"
        r"|^\s+optim/total[_ ]grad[_ ]norm={grad_norm}|^\s+throughput/device/TPS={toks_per_s_per_rank}"
        r"|^\s+throughput/total[_ ]tokens={tokens_seen}"
        r"|^\s+(?!train/)\S+/(?:CrossEntropyLoss|CE loss)={val_loss}"
        r"|^\s+Eval (?:metrics/)?(?:\S+/)?(?:LanguageCrossEntropy|CrossEntropy): {val_loss}",
        "a block of lines; `tokens_per_second` is a mean over many steps and is not used, the dates are; of several "
        "validations the last one's loss counts",
    ),
    Recipe(
        "NeMo",
        ("reduced_train_loss",),
        r"Training epoch {epoch}, iteration {step}/\d+ \|(?=(?:.*? lr: {lr})?).*? reduced_train_loss: {loss}"
        r"(?=(?:.*?train_step_timing in s: {step_time_s})?)(?=(?:.*? val_loss: {val_loss})?)",
    ),
    Recipe(
        "fairseq",
        ("num_updates",),
        r"^(?!.*?valid)(?=(?:.{0,40}?{timestamp} \| )?)(?=.*?\bnum_updates[\"']?[=:] ?[\"']?{step}\b)"
        r"(?=.*?(?<![\w/])loss[\"']?[=:] ?[\"']?{loss})(?=(?:.*?\bgnorm[\"']?[=:] ?[\"']?{grad_norm})?)"
        r"(?=(?:.*?\blr[\"']?[=:] ?[\"']?{lr})?)(?=(?:.*?(?<!train_)\bwall[\"']?[=:] ?[\"']?{elapsed_s})?)"
        r"|\bvalid on 'valid' subset \| loss {val_loss} \|.*?\| num_updates {step}\b"
        r"|\"valid_loss\": \"{val_loss}\".*?\"valid_num_updates\": \"{step}\"",
        "`wps` and `ups` are rounded, or means of the whole epoch, and are not used",
    ),
    Recipe(
        "ESPnet",
        ("epoch:train:",),
        r"^\[[^\]]*\] {timestamp} .*?INFO: {epoch}epoch:train:\d+-{step}batch: .*?(?<![\w])loss={loss}"
        r"|INFO: \d+epoch results: .*?\[valid\][^\[]*?(?<!\w)loss={val_loss}",
        "the date gives the time, pauses included",
    ),
    Recipe(
        "WeNet",
        ("debug train",),
        r"^{timestamp} DEBUG TRAIN \|?.{0,60}?\bBatch {epoch}/{step} loss {loss} .*?(?:lr {lr} )?rank \d"
        r"|\bCV info (?:lr \S+ )?cv_loss {val_loss}",
        "`Batch` is the number of an epoch and of a batch in it",
    ),
    Recipe(
        "Marian",
        ("ep. ",),
        r"^\[{timestamp}\] Ep\. [\d.]+ : Up\. {step} : Sen\. [\d,]+ : Cost {loss}(?: \* [^:]*)? : Time {interval_s}s"
        r"(?=(?:.*? gNorm {grad_norm})?)(?=(?:.*? L\.r\. {lr})?)"
        r"|\[valid\] Ep\. [\d.]+ : Up\. {step} : (?:cross-entropy|ce-mean-words) : {val_loss} :",
        "`Cost` and `Time` are those since the line before",
    ),
    Recipe(
        "MMEngine",
        ("data_time",),
        r"^\W{0,3}{timestamp} - .*?Epoch ?(?:\(train\) +)?\[{epoch}\]\[ *{step}/{steps_per_epoch}\]"
        r".*? time: {step_time_s}(?=(?:.*? data_time: {dt_fetch_s})?)"
        r"(?=(?:.*? grad_norm: {grad_norm})?).*? loss: {loss}"
        r"|^\W{0,3}{timestamp} - .*?Iter ?(?:\(train\) +)?\[ *{step}/ *{steps_total}\].*? time: {step_time_s}"
        r"(?=(?:.*? data_time: {dt_fetch_s})?)(?=(?:.*? grad_norm: {grad_norm})?).*? loss: {loss}"
        r"|(?:Epoch|Iter)\((?:val|train(?=\) +\[\d+\]\[ *\d+\]))\) +(?:\[\d+\])?\[ *\d+(?:/\d+)?\]"
        r".*?(?<![\w.])(?:val[_/])?loss(?:_val)?: {val_loss}",
        "times and loss are means since the line before",
    ),
    Recipe(
        "nnU-Net",
        ("train_loss", "train loss", "epoch", "val_loss", "validation loss"),
        r"^(?:{timestamp}: +(?i:epoch):? +{step}\s*$|\d{4}-\d\d-\d\d [\d:.]+: +(?:train[_ ]loss ?:? *{loss}"
        r"|val(?:idation)?[_ ]loss ?:? *{val_loss}|(?:Epoch time:|This epoch took) {step_time_s} s))",
        "a row an epoch",
        by_epochs=True,
    ),
    Recipe(
        "timm",
        ("train:",),
        r"Train: {epoch} \[ *{step}/{steps_per_epoch} +\( *\d+%\)\] +Loss: +{loss} .*?Time: {own_step_time_s}s,"
        r"(?=(?:.*? Data: +[\d.e+-]+ \( *{mean_dt_fetch_s}\))?)",
        "the time is that of one step, the wait for data a running mean since the epoch's start",
    ),
    Recipe(
        "PyTorch MNIST example",
        ("train epoch:",),
        r"{row}Train Epoch: \d+ \[ *\d+/\d+ \(\d+%\)\](?=(?:.*?Batch \(t\): [\d.]+, {samples_per_s}/s)?)"
        r".*?(?<!\w)Loss: {loss}|^Test set: Average loss: {val_loss},",
        "samples are printed and no step: lines are counted",
    ),
    Recipe(
        "Ultralytics",
        ("it/s", "s/it"),
        r"^\s*{epoch}/\d+\s+[\d.]+G\s+{loss}\s.*?: +\d+%.*? (?!0/){step}/{steps_per_epoch} "
        r"(?:\[{elapsed_s}<|[\d.]+(?:it/s|s/it) {elapsed_s}s?(?!\w))",
        "the first of its losses counts as the loss; each is a mean since the epoch's start",
    ),
    Recipe(
        "clu",
        ("logging_writer.py", "loss="),
        r"^[IW]{timestamp} [^\]]*\] \[{step}\] (?!collection=(?!train )).*?(?<![\w/])(?:train_)?loss={loss}"
        r"|^[IW]{timestamp} [^\]]*\] \[{step}\] (?:collection=(?:eval|valid|validation|test) .*?(?<![\w/])"
        r"|.*?(?<![\w/])(?:eval|val|valid|validation|test)_)loss={val_loss}",
        "the writer of t5x and of examples in JAX; the date gives the time, pauses included",
    ),
    Recipe(
        "TensorFlow Estimator",
        ("step =",),
        r"^(?:[IW]{timestamp} [^\]]*\] )?(?:INFO:tensorflow:)?loss = {loss}, step = {step}(?: \({interval_s} sec\))?"
        r"|\bSaving dict for global step {step}: .*?(?<![\w/])loss = {val_loss}",
    ),
    Recipe(
        "litgpt",
        ("iter time",),
        r"\biter \d+ (?:\| )?step {step}(?::| \|) loss(?: train)?(?: \(curr\))?:? {loss},"
        r"|^(?:iter|step) \d+: val loss {val_loss}",
        "`iter time` is that of one of the parts of a step, and is not used",
    ),
    Recipe(
        "word_language_model",
        ("ms/batch",),
        r"epoch +{epoch} \| +{step}/ *{steps_per_epoch} batches \|.*?ms/batch +{step_time_ms} \| loss +{loss}"
        r"|\bend of epoch .*?\| valid loss +{val_loss} \|",
    ),
    Recipe("llama2.c", ("mfu",), r"^{step} \| loss {loss} \| lr {lr} \| {own_step_time_ms}ms" + _OF_NANOGPT),
    Recipe(
        "pytorch-cifar",
        ("| tot: ",),
        r"^ *\[=*>?\.*\] +Step: \S+ \| Tot: {elapsed_s} \| Loss: {loss}(?: \||\x08).*?[\x08 ]"
        r"{step}/(?={steps_total}){steps_per_epoch} *$",
        "the loss is a mean since the epoch's start; `Tot` runs since then",
    ),
    Recipe(
        "CleanRL",
        ("episodic_return=",),
        r"^global_step={step}, episodic_return=\[?{mean_reward}",
        "the return of each episode, at the step of the environment where it ended",
    ),
    Recipe(
        "pytorch-a2c-ppo-acktr",
        ("num timesteps", "training episodes"),
        r"^Updates {step}, num timesteps \d+, FPS|^ *Last \d+ training episodes: mean/median reward {mean_reward}/",
        "`FPS` is a mean since the start and is not used",
    ),
    Recipe("gpt-2-simple", ("avg=",), r"^\[{step} \| {elapsed_s}\] loss={loss}"),
    Recipe(
        "Levanter",
        ("progress on:",),
        r"Progress on: ?train {step}it/{steps_total}it .*?elapsed:{elapsed_s} .*?(?<!\w)loss={loss}"
        r"|:: (?:eval|(?:\S+ )?validation) loss: {val_loss}",
    ),
)
"""Formats in the order in which they are preferred."""
