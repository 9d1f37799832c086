"""From a TOML file to a trained model and the record of its run. Needs `pip install "lyapflow[graph,train]"`."""

try:
    import lightning.pytorch  # noqa: F401
    import torchmetrics  # noqa: F401
except ImportError as error:
    raise ImportError('training needs Lightning and torchmetrics: pip install "lyapflow[graph,train]"') from error

from .callback import Diverged, Pruned
from .config import Config, DataConfig, ModelConfig, TrainingConfig, load_config
from .export import export_model, load_model
from .files import DamagedError
from .predict import Predictions, predict
from .record import Record
from .report import Report, report
from .run import Interrupted, train
from .schema import ConfigError

__all__ = [
    "Config",
    "ConfigError",
    "DamagedError",
    "DataConfig",
    "Diverged",
    "Interrupted",
    "ModelConfig",
    "Predictions",
    "Pruned",
    "Record",
    "Report",
    "TrainingConfig",
    "export_model",
    "load_config",
    "load_model",
    "predict",
    "report",
    "train",
]
