"""Options of the trackers. API keys are never options: each library reads its own environment variables."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class TensorBoardOptions:
    """`folder`: where event files go; None: `tensorboard` in the run's folder."""

    folder: str | None = None


@dataclass(frozen=True)
class WandbOptions:
    """`project` and `entity` as the service names them (`entity` None: the account's own), `group` and `tags` to find
    runs by. `mode` is `online` or `offline`: offline runs lie in `wandb` in the run's folder until `wandb sync`."""

    project: str = "mappa"
    entity: str | None = None
    group: str | None = None
    tags: list[str] = field(default_factory=list)
    mode: str = "online"


@dataclass(frozen=True)
class MlflowOptions:
    """`uri`: the tracking server or store; None: what MLFLOW_TRACKING_URI says, or MLflow's own default."""

    experiment: str = "mappa"
    uri: str | None = None


@dataclass(frozen=True)
class OtelOptions:
    """`endpoint`: the collector's URL for traces over OTLP/HTTP; None: what OTEL_EXPORTER_OTLP_ENDPOINT and its kin
    say. `file`: write spans there, one JSON object a line, and send nothing; a relative path is in the run's folder.

    `content`: also what agents saw and wrote, what tools answered and what coaches said. The truth never leaves.
    """

    endpoint: str | None = None
    file: str | None = None
    content: bool = False
    service: str = "mappa"


@dataclass(frozen=True)
class RayOptions:
    """No options: the cluster configures where metrics are exported."""
