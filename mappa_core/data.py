"""What authors of task sources import: rows of files and data sets, and tasks made of them."""

from mappa_core.defaults.row_files import Rows as Rows
from mappa_core.defaults.row_files import read_dataset as read_dataset
from mappa_core.defaults.row_files import read_rows as read_rows
