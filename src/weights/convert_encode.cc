#include "weights/convert_encode.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <vector>

#include "base/check.h"

namespace fathom {
namespace {

// A row of FP8 blocks; also a multiple of a rotation block and of a pair of rows.
constexpr int64_t kBand = 128;
static_assert(kBand % kFp8BlockSize == 0 && kBand % kRotationBlock == 0);

template <typename T>
std::span<const std::byte> Bytes(const std::vector<T>& v) {
  return std::as_bytes(std::span<const T>(v));
}

tl::unexpected<Error> NotFinite(const Tensor& t) {
  return Invalid(
      "{}: tensor '{}' has values beyond the range of float; the file is damaged, fetch it again",
      *t.file, t.name);
}

class Encoder {
 public:
  Encoder(const ConvertJob& job, SafetensorsWriter& out, const std::vector<int64_t>& places)
      : job_(job), out_(out), places_(places) {}

  // Rows [first, first + band.rows) of the matrix.
  Status Write(int64_t first, const Weight& band) {
    switch (job_.storage) {
      case StoredAs::kFp8:
        return WriteBlocks(first / kFp8BlockSize, first, band, QuantizeFp8);
      case StoredAs::kFp4:
        return WriteBlocks(first, first, band, QuantizeFp4);
      case StoredAs::kInt8:
      case StoredAs::kInt8Static:
        return WriteInt8(first, band);
      case StoredAs::kInt4:
        return WriteInt4(first, band);
      case StoredAs::kF32:
        return WriteF32(first, band);
      case StoredAs::kBf16:
        return WriteBf16(first, band);
      case StoredAs::kIds:
      case StoredAs::kUnknown:
        break;
    }
    CHECK(false, "{} has no rows to encode", job_.name);
    return {};
  }

 private:
  // Part `i` of the job's outputs, from its row `row` on.
  Status Put(size_t i, int64_t row, std::span<const std::byte> bytes) {
    const TensorDeclaration& t = job_.outputs[i];
    const int64_t rows = t.shape.size() == 1 && t.shape[0] != job_.rows ? 1 : t.shape[0];
    return out_.WriteAt(places_[i] + row * (t.bytes() / rows), bytes);
  }
  size_t weight() const { return job_.outputs.size() - 1; }

  template <typename Quantize>
  Status WriteBlocks(int64_t scale_row, int64_t first, const Weight& band, Quantize quantize) {
    const TensorDeclaration& scale = job_.outputs[0];
    const TensorDeclaration& code = job_.outputs[1];
    const int64_t scale_rows = job_.storage == StoredAs::kFp8 ? 1 : band.rows;
    std::vector<uint8_t> scales(static_cast<size_t>(scale_rows * scale.shape[1]));
    std::vector<uint8_t> codes(static_cast<size_t>(band.rows * code.shape[1]));
    if (!quantize(band, codes, scales)) return NotFinite(*job_.source);
    TRY_STATUS(Put(0, scale_row, Bytes(scales)));
    return Put(1, first, Bytes(codes));
  }

  Status WriteInt8(int64_t first, const Weight& band) {
    std::vector<int8_t> codes(static_cast<size_t>(band.rows * band.cols));
    std::vector<float> scales(static_cast<size_t>(band.rows));
    if (!QuantizeInt8(band, codes, scales)) return NotFinite(*job_.source);
    if (job_.storage == StoredAs::kInt8Static) {
      TRY_STATUS(WriteStatic(first, band, codes, scales));
    } else {
      TRY_STATUS(Put(0, first, Bytes(scales)));
      TRY_STATUS(Put(1, first, Bytes(std::vector<float>(scales.size(), 0.0F))));
    }
    return Put(weight(), first, Bytes(codes));
  }

  Status WriteStatic(int64_t first, const Weight& band, const std::vector<int8_t>& codes,
                     const std::vector<float>& scales) {
    const InputScale input = StaticInputScale(job_.inputs);
    std::vector<float> deq(scales.size());
    std::vector<int32_t> bias(scales.size());
    for (size_t r = 0; r < scales.size(); ++r) {
      deq[r] = input.scale * scales[r];
      int32_t sum = 0;
      const auto row = codes.begin() + static_cast<std::ptrdiff_t>(r) * band.cols;
      for (auto q = row; q != row + band.cols; ++q) sum += *q;
      bias[r] = -input.offset * sum;
    }
    TRY_STATUS(Put(0, first, Bytes(deq)));
    TRY_STATUS(Put(1, first, Bytes(bias)));
    if (first > 0) return {};
    TRY_STATUS(out_.WriteAt(places_[2], Bytes(std::vector<float>{input.scale})));
    return out_.WriteAt(places_[3], Bytes(std::vector<float>{static_cast<float>(input.offset)}));
  }

  Status WriteInt4(int64_t first, const Weight& band) {
    std::vector<uint8_t> packed(static_cast<size_t>(band.rows / 2 * band.cols));
    std::vector<float> scales(static_cast<size_t>(band.rows));
    if (!QuantizeInt4(band, packed, scales)) return NotFinite(*job_.source);
    const int64_t chunks = job_.outputs[2].shape[1];
    const int64_t width = band.cols / chunks;
    std::vector<float> bias(static_cast<size_t>(band.rows * chunks));
    for (int64_t r = 0; r < band.rows; ++r) {
      const uint8_t* row = packed.data() + r / 2 * band.cols;
      for (int64_t k = 0; k < band.cols; ++k) {
        const int code = (r & 1) != 0 ? row[k] >> 4 : row[k] & 15;
        bias[static_cast<size_t>(r * chunks + k / width)] +=
            static_cast<float>(code < 8 ? code : code - 16);
      }
      for (int64_t c = 0; c < chunks; ++c) {
        bias[static_cast<size_t>(r * chunks + c)] *= 8.0F * scales[static_cast<size_t>(r)];
      }
    }
    TRY_STATUS(Put(0, first, Bytes(scales)));
    TRY_STATUS(Put(1, first, Bytes(std::vector<float>(scales.size(), 0.0F))));
    TRY_STATUS(Put(2, first, Bytes(bias)));
    return Put(3, first / 2, Bytes(packed));
  }

  Status WriteF32(int64_t first, const Weight& band) {
    return Put(0, first, {band.data, static_cast<size_t>(band.rows * band.cols * 4)});
  }

  Status WriteBf16(int64_t first, const Weight& band) {
    const auto* x = reinterpret_cast<const float*>(band.data);
    std::vector<Bf16> narrow(static_cast<size_t>(band.rows * band.cols));
    std::transform(x, x + narrow.size(), narrow.begin(), ToBf16);
    const auto infinite = [](Bf16 v) { return (v.bits & 0x7f80U) == 0x7f80U; };
    if (std::any_of(narrow.begin(), narrow.end(), infinite)) return NotFinite(*job_.source);
    return Put(0, first, Bytes(narrow));
  }

  const ConvertJob& job_;
  SafetensorsWriter& out_;
  const std::vector<int64_t>& places_;
};

Status WriteIds(WeightLoader& loader, const ConvertJob& job, SafetensorsWriter& out,
                int64_t place) {
  const Shape& shape = job.source->shape;
  if (shape.size() != 2) {
    return Invalid("{}: tensor '{}' has shape {}, expected [vocabulary, experts per token]",
                   *job.source->file, job.source->name, ShapeText(shape));
  }
  TRY(const std::vector<int32_t> ids,
      loader.IdTable(job.source->name, shape[0], shape[1], int64_t{1} << 31));
  return out.WriteAt(place, Bytes(std::vector<int64_t>(ids.begin(), ids.end())));
}

// Whether the source holds what the job would write, code for code: encoding again could choose
// another scale in the last bit.
bool SameIntegers(const Weight& w, const ConvertJob& job) {
  if (job.rotation.any()) return false;
  return (w.format == WeightFormat::kInt8Dynamic && job.storage == StoredAs::kInt8) ||
         (w.format == WeightFormat::kInt4Dynamic && job.storage == StoredAs::kInt4);
}

// Codes and scales of the source as they are; scale_bias is made again, as it may be missing.
Status CopyIntegers(const Weight& w, const ConvertJob& job, SafetensorsWriter& out,
                    const std::vector<int64_t>& places) {
  const auto rows = static_cast<size_t>(w.rows);
  TRY_STATUS(out.WriteAt(places[0], std::as_bytes(std::span(w.channel_scale, rows))));
  TRY_STATUS(out.WriteAt(places[1], Bytes(std::vector<float>(rows, 0.0F))));
  if (job.storage == StoredAs::kInt4) {
    const int64_t chunks = job.outputs[2].shape[1];
    const int64_t width = w.cols / chunks;
    std::vector<float> row(static_cast<size_t>(w.cols));
    std::vector<float> bias(static_cast<size_t>(chunks));
    for (int64_t r = 0; r < w.rows; ++r) {
      DequantizeRow(w, r, row.data());
      std::fill(bias.begin(), bias.end(), 0.0F);
      for (int64_t k = 0; k < w.cols; ++k) {
        bias[static_cast<size_t>(k / width)] += 8.0F * row[static_cast<size_t>(k)];
      }
      TRY_STATUS(out.WriteAt(places[2] + r * chunks * 4, Bytes(bias)));
    }
  }
  const int64_t bytes = job.outputs.back().bytes();
  return out.WriteAt(places.back(), {w.data, static_cast<size_t>(bytes)});
}

}  // namespace

Status RunConvertJob(WeightLoader& loader, const ConvertJob& job, const Rotation& rotation,
                     SafetensorsWriter& out, const std::vector<int64_t>& places) {
  if (job.storage == StoredAs::kIds) return WriteIds(loader, job, out, places[0]);
  const std::string_view source = job.source->name;
  const bool matrix = job.source->shape.size() == 2 && source.ends_with(".weight");
  TRY(const Weight w, matrix ? loader.StoredMatrix(source.substr(0, source.rfind(".weight")))
                             : loader.Real(source));
  if (SameIntegers(w, job)) return CopyIntegers(w, job, out, places);

  std::vector<float> gamma;
  if (!job.rotation.gamma.empty()) {
    TRY(const Weight norm, loader.Vector(job.rotation.gamma, job.cols));
    gamma.resize(static_cast<size_t>(job.cols));
    DequantizeRow(norm, 0, gamma.data());
  }
  Encoder encoder(job, out, places);
  std::vector<float> values(static_cast<size_t>(std::min(kBand, job.rows) * job.cols));
  for (int64_t first = 0; first < job.rows; first += kBand) {
    const int64_t rows = std::min(kBand, job.rows - first);
    for (int64_t r = 0; r < rows; ++r) {
      float* row = values.data() + r * job.cols;
      DequantizeRow(w, first + r, row);
      for (size_t k = 0; k < gamma.size(); ++k) row[k] *= gamma[k];
      if (job.rotation.ones) std::fill(row, row + job.cols, 1.0F);
      if (job.rotation.right) rotation.ApplyRight(row, job.cols);
    }
    if (job.rotation.left) rotation.ApplyLeft(values.data(), rows, job.cols);
    Weight band;
    band.rows = rows;
    band.cols = job.cols;
    band.data = reinterpret_cast<const std::byte*>(values.data());
    TRY_STATUS(encoder.Write(first, band));
  }
  return {};
}

}  // namespace fathom
