"""What the user declares: the factory descriptor and the model catalogue."""

from ros2_rfm_serving.factory.catalogue import Catalogue, CatalogueEntry
from ros2_rfm_serving.factory.descriptor import Component, Factory, Robot, Task
from ros2_rfm_serving.factory.reading import load_factory, parse_factory

__all__ = [
    "Catalogue",
    "CatalogueEntry",
    "Component",
    "Factory",
    "Robot",
    "Task",
    "load_factory",
    "parse_factory",
]
