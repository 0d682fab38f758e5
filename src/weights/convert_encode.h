#pragma once
// Carries out one job of a conversion: reads the source in bands of rows, multiplies and turns them
// where the job says so, encodes them and writes each part at its place. Memory: one band in float
// and its codes, beside the mapped source.

#include <cstdint>

#include "base/error.h"
#include "weights/convert_plan.h"
#include "weights/safetensors_writer.h"
#include "weights/weight_loader.h"

namespace fathom {

// `places`: where in the data of `out` job.outputs[i] begins, for each i.
Status RunConvertJob(WeightLoader& loader, const ConvertJob& job, const Rotation& rotation,
                     SafetensorsWriter& out, const std::vector<int64_t>& places);

}  // namespace fathom
