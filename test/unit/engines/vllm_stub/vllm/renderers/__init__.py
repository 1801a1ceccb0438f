from .params import ChatParams

__all__ = ["ChatParams"]
