#!/usr/bin/env bash
# A small square picture costs SmolVLM more tokens than a photograph of 1920 x 1080.
#
# Versions: transformers 4.57.6, Pillow 12.0.0, numpy 2.2.6; Python 3.11, Debian 12.
# Expected: fewer pixels, fewer or as many tokens; so that sending small pictures to a SmolVLM judge or planner makes it quicker.
# Seen: with the sizes of the published processors (`size` longest edge 2048, `max_image_size` 512, `do_image_splitting`) every picture is
#   first scaled up until its longest edge is 2048 pixels, then cut into tiles of 512, plus one of the whole. So the aspect ratio alone
#   decides: 96 x 96 gives 17 tiles (1,088 tokens at 64 a tile), 480 x 640 and 1080 x 1920 give 13 (832).
# Date: 2026-11-29.
# Why it matters: robots crop and shrink their pictures before they send them, often to 224 x 224, to save time. Here that costs 31 % more
#   tokens of a prompt than the camera's own 4:3, besides the detail. Padding or cropping to the camera's ratio, or
#   `do_image_splitting: false`, is what saves time.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check 'transformers==4.57.6' 'pillow==12.0.0' 'numpy==2.2.6'
cat > "$folder/count.py" <<'PYTHON'
import sys

import numpy as np
from PIL import Image
from transformers.models.smolvlm.image_processing_smolvlm import SmolVLMImageProcessor

TOKENS_A_TILE = 64
processor = SmolVLMImageProcessor(size={"longest_edge": 2048}, max_image_size={"longest_edge": 512}, do_image_splitting=True)
found = {}
for height, width in ((96, 96), (224, 224), (240, 320), (480, 640), (1080, 1920)):
    picture = Image.fromarray(np.zeros((height, width, 3), np.uint8))
    tiles = processor(images=[[picture]], return_tensors="np")["pixel_values"].shape[1]
    found[height, width] = tiles * TOKENS_A_TILE
    print(f"{height} x {width}: {tiles} tiles, {tiles * TOKENS_A_TILE} tokens")
if found != {(96, 96): 1088, (224, 224): 1088, (240, 320): 832, (480, 640): 832, (1080, 1920): 832}:
    sys.exit("the behaviour has changed")
PYTHON
HF_HUB_OFFLINE=1 "$folder/venv/bin/python" "$folder/count.py" 2> /dev/null
# Output, 2026-11-29:
#   96 x 96: 17 tiles, 1088 tokens
#   224 x 224: 17 tiles, 1088 tokens
#   240 x 320: 13 tiles, 832 tokens
#   480 x 640: 13 tiles, 832 tokens
#   1080 x 1920: 13 tiles, 832 tokens
