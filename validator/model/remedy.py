"""What may be tried when a phase fails: the failure playbook as data.

A remedy is tried once and never hides a failure. One that leaves the declared config as it is (another master port, no
tracing) may repair the phase; one that changes it can only show what to declare next time.
"""

from collections.abc import Collection, Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from validator.model.parts import Count, Identifier, Setting
from validator.model.units import Frozen, Reads

MAX_REMEDIES = 4
"""Maximum of remedies of one phase: each takes as long as the phase itself."""

Trigger = Literal["stall", "error", "criterion"]
"""`stall`: a run stalled or ran out of time. `error`: one ended in another bad way. `criterion`: all ended well."""

OBSERVING = frozenset(
    {
        "env.NSA_NVTX",
        "env.NSA_PROFILE_STEPS",
        "env.NSA_TB_DISABLE",
        "env.NSA_TENSORBOARD",
        "env.NSA_DISABLE_AUX_STATS",
        "env.NSA_AUX_EVERY",
        "env.NCCL_DEBUG",
        "args.nvtx",
        "args.profile_steps",
        "args.tensorboard",
        "args.aux_stats",
        "args.aux_every",
    }
)
"""Settings that change what is logged, not what is trained."""


class Remedy(Frozen, defer_build=False):
    """One thing to try when a phase has failed: the same runs again, with these settings over all others.

    As plain text it is one of the playbook: `port`, `bucket_50`, `selection_v1`, `fused_off`, `tracing_off`,
    `shorter_profile`. A pass after a remedy that changes the declared config does not make the phase pass.
    """

    name: Identifier = Field(description="Name, used in folder names; one of the playbook brings its settings along.")
    on: tuple[Trigger, ...] = Field(
        ("stall", "error", "criterion"),
        min_length=1,
        description="Failures it is tried for: `stall` (stalled or out of time), `error` (another bad end), "
        "`criterion` (every run ended well).",
    )
    env: dict[str, Setting] = Field(default_factory=dict, description="Set in the environment.")
    args: dict[str, Setting] = Field(default_factory=dict, description="Set in the arguments of the trainer.")
    steps: Count | None = Field(None, ge=1, description="Steps of each run, for a profile that takes too long.")

    @model_validator(mode="after")
    def _changes_something(self) -> "Remedy":
        if self.name != "port" and not (self.env or self.args or self.steps):
            raise ValueError(
                f"name is {self.name!r}, which is not in the playbook and changes nothing; "
                f"write one of {', '.join(PLAYBOOK)}, or give it env or args"
            )
        if not self.settings and "criterion" in self.on:
            raise ValueError(
                f"on contains criterion, for which {self.name} would only run the same again until it passes; "
                "write on: [stall, error]"
            )
        return self

    @property
    def settings(self) -> dict[str, Setting]:
        """`env.NAME`, `args.NAME` and `steps` to value."""
        found: dict[str, Setting] = {f"env.{key}": value for key, value in self.env.items()}
        found |= {f"args.{key}": value for key, value in self.args.items()}
        return found | ({} if self.steps is None else {"steps": self.steps})

    def keeps_config(self, free: Collection[str] = ()) -> bool:
        """Whether what is trained stays as declared: only what is logged changes, or a setting of `free`."""
        return all(key.replace("-", "_") in OBSERVING or key in free for key in self.settings)


PLAYBOOK: Mapping[str, Mapping[str, Any]] = {
    "port": {"on": ("stall", "error")},
    "bucket_50": {"on": ("criterion",), "env": {"NSA_DDP_BUCKET_MB": 50}},
    "selection_v1": {"on": ("error", "criterion"), "env": {"NSA_SEL_RANGES_V2": 0}},
    "fused_off": {"env": {"NSA_OPT_FUSED": 0}},
    "tracing_off": {"env": {"NSA_NVTX": 0, "NSA_TB_DISABLE": 1, "NSA_DISABLE_AUX_STATS": 1}},
    "shorter_profile": {"on": ("stall",), "steps": 50},
}
"""The remedies that have a name of their own: what each changes, and for which failures it is tried."""


def _from_playbook(value: Any) -> Any:
    named = {"name": value} if isinstance(value, str) else value
    if not isinstance(named, dict) or not isinstance(named.get("name"), str):
        return named
    if any(named.get(key) for key in ("env", "args", "steps")):
        return named
    return {**PLAYBOOK.get(named["name"], {}), **named}


RemedyField = Annotated[Remedy, Reads(_from_playbook, written=str | Remedy)]
