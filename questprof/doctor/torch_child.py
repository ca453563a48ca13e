"""A program of its own: what torch says of itself and its first GPU, as one line of JSON on stdout.

Apart, so that an import that takes long, fails or takes the process down costs the doctor one line.
"""

from __future__ import annotations

import json
from typing import Any


def look() -> dict[str, Any]:
    """The fields of TorchFacts."""
    try:
        import torch

        found: dict[str, Any] = {"version": torch.__version__, "cuda": torch.version.cuda or ""}
        found["num_gpus"] = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if found["num_gpus"]:
            properties = torch.cuda.get_device_properties(0)
            found |= {
                "device_name": properties.name,
                "capability": list(torch.cuda.get_device_capability(0)),
                "num_sms": properties.multi_processor_count,
                "l2_bytes": properties.L2_cache_size,
                "memory_bytes": properties.total_memory,
                "free_bytes": torch.cuda.mem_get_info(0)[0],
            }
        return found
    except Exception as error:
        return {"error": f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"}


if __name__ == "__main__":
    print(json.dumps(look()))
