"""An optimization that minds its own business."""
