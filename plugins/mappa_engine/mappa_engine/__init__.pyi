from .tiny.supervised_trainer import Encoded as Encoded
from .tiny.supervised_trainer import Imitator as Imitator
from .tiny.supervised_trainer import byte_pairs as byte_pairs
