"""Native code: `core` (dispatchers, guard programs, tensor reads) and `program` (the runtime of compiled graphs).

Importing this package loads the core and calibrates it against the torch that is running.
"""

from stator._native.calibrate import CALIBRATION, Calibration, calibration, use_level

__all__ = ["CALIBRATION", "Calibration", "calibration", "use_level"]
