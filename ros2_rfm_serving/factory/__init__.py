"""Declarations of the user: the factory descriptor and the model catalogue."""

from ros2_rfm_serving.factory.catalogue import Catalogue, CatalogueEntry
from ros2_rfm_serving.factory.descriptor import Factory, RobotEntry
from ros2_rfm_serving.factory.reading import load_factory, parse_factory
from ros2_rfm_serving.factory.task import ComponentEntry, TaskEntry

__all__ = [
    "Catalogue",
    "CatalogueEntry",
    "ComponentEntry",
    "Factory",
    "RobotEntry",
    "TaskEntry",
    "load_factory",
    "parse_factory",
]
