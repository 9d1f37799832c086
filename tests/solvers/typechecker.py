"""beartype, with whole numbers counting as floating point ones, as type checkers have it."""

from beartype import BeartypeConf, beartype

check = beartype(conf=BeartypeConf(is_pep484_tower=True))
