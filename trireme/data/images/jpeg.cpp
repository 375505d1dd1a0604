// SPDX-License-Identifier: Apache-2.0
#include <trireme/base/error.h>  // Includes <cstdio>, which jpeglib.h needs.
#include <trireme/data/images/planes.h>

#include <jerror.h>
#include <jpeglib.h>

#include <array>
#include <cstdio>
#include <vector>

namespace trireme::data::detail {
namespace {

// Limits for progressive files. libjpeg holds such a file in memory as coefficients, several bytes
// per pixel. Each scan may be a pass over all of them, while a scan that changes nothing takes only
// a few bytes of the file. So a small file could take hours. Files from cameras and programs have
// about ten scans.
constexpr int kMaximumScans = 500;
constexpr std::int64_t kMaximumPasses = 16;  // Passes over max_progressive_pixels pixels.

struct Failure : jpeg_error_mgr {
  std::jmp_buf jump;
  std::array<char, JMSG_LENGTH_MAX> text;
};

[[noreturn]] void fail_with(j_common_ptr common, const char* text) {
  auto* failure = static_cast<Failure*>(common->err);
  std::snprintf(failure->text.data(), failure->text.size(), "%s", text);
  std::longjmp(failure->jump, 1);
}

[[noreturn]] void fail(j_common_ptr common) {
  auto* failure = static_cast<Failure*>(common->err);
  failure->format_message(common, failure->text.data());
  std::longjmp(failure->jump, 1);
}

// libjpeg calls this for warnings (level -1) and traces. A warning is usually damage after which
// libjpeg would continue with invented pixels, so it becomes an error.
void judge(j_common_ptr common, int level) {
  if (level >= 0) return;  // A trace message.
  switch (common->err->msg_code) {
    // Deviations that encoders produce; the pixels are intact.
    case JWRN_ADOBE_XFORM:
    case JWRN_EXTRANEOUS_DATA:
    case JWRN_JFIF_MAJOR:
    case JWRN_NOT_SEQUENTIAL:
    case JWRN_TOO_MUCH_DATA:
      return;
    default:
      fail(common);
  }
}

// libjpeg calls this when it needs bytes beyond the end of the file.
boolean refuse_to_refill(j_decompress_ptr info) {
  info->src->bytes_in_buffer = 0;  // The decoder keeps a copy of its own.
  fail_with(reinterpret_cast<j_common_ptr>(info), "the file is cut short");
}

void skip(j_decompress_ptr info, long count) {
  if (count <= 0) return;
  if (static_cast<std::size_t>(count) > info->src->bytes_in_buffer) refuse_to_refill(info);
  info->src->next_input_byte += count;
  info->src->bytes_in_buffer -= static_cast<std::size_t>(count);
}

struct Progress : jpeg_progress_mgr {
  std::int64_t max_pixels;  // The limit for all scans together.
};

// libjpeg calls this for each scan.
void limit_scans(j_common_ptr common) {
  const auto* const info = reinterpret_cast<j_decompress_ptr>(common);
  const int scans = info->input_scan_number;
  if (scans > kMaximumScans) fail_with(common, "it has more than 500 scans");
  const std::int64_t pixels = std::int64_t{info->image_height} * info->image_width;
  if (scans > 1 && scans * pixels > static_cast<Progress*>(common->progress)->max_pixels)
    fail_with(common, "it has more scans than an image of this size may have");
}

// Runs the steps of decoding. Each step runs within returns(), so errors of libjpeg leave it by
// longjmp; between the steps, C++ code may allocate and throw.
class Decoder {
 public:
  Decoder(std::span<const std::byte> bytes, std::string_view name) : bytes_(bytes), name_(name) {
    info_.err = jpeg_std_error(&failure_);
    failure_.error_exit = fail;
    failure_.emit_message = judge;
    source_.next_input_byte = reinterpret_cast<const JOCTET*>(bytes.data());
    source_.bytes_in_buffer = bytes.size();
    source_.init_source = [](j_decompress_ptr) {};
    source_.fill_input_buffer = refuse_to_refill;
    source_.skip_input_data = skip;
    source_.resync_to_restart = jpeg_resync_to_restart;
    source_.term_source = [](j_decompress_ptr) {};
    progress_.progress_monitor = limit_scans;
  }
  Decoder(const Decoder&) = delete;
  Decoder& operator=(const Decoder&) = delete;
  ~Decoder() { jpeg_destroy_decompress(&info_); }  // Safe even if it was never created.

  at::Tensor decode(const ImageOptions& options) {
    progress_.max_pixels = kMaximumPasses * options.max_progressive_pixels;
    run<&Decoder::read_header>();
    refuse_large_progressive(options);
    if (info_.num_components == 2) refuse("two channels, expected 1, 3 or 4");
    ImagePlanes planes(name_, info_.image_height, info_.image_width, options);
    row_.resize(std::size_t{info_.image_width} * static_cast<std::size_t>(info_.num_components));
    planes_ = &planes;
    run<&Decoder::read_rows>();
    return planes.tensor();
  }

 private:
  template <void (Decoder::*Step)()>
  void run() {
    if (!returns(failure_.jump, [](void* self) { (static_cast<Decoder*>(self)->*Step)(); }, this))
      refuse(failure_.text.data());
  }

  [[noreturn]] void refuse(std::string_view what) const {
    throw DataError(
        join_message(name_, ": offset ", bytes_.size() - source_.bytes_in_buffer, ": JPEG: ", what),
        "get the file anew, or take it out of the data set");
  }

  void refuse_large_progressive(const ImageOptions& options) {
    const std::int64_t pixels = std::int64_t{info_.image_height} * info_.image_width;
    if (jpeg_has_multiple_scans(&info_) == FALSE || pixels <= options.max_progressive_pixels)
      return;
    throw DataError(join_message(name_, ": the progressive image has ", info_.image_height, " x ",
                                 info_.image_width, " pixels, more than the ",
                                 options.max_progressive_pixels, " that are allowed of this kind"),
                    "raise ImageOptions::max_progressive_pixels where this is no mistake");
  }

  void read_header() {
    jpeg_create_decompress(&info_);
    info_.src = &source_;
    info_.progress = &progress_;
    jpeg_read_header(&info_, TRUE);
  }

  void read_rows() {
    PixelLayout layout = PixelLayout::kRgb;
    info_.out_color_space = JCS_RGB;
    if (info_.num_components == 1) {
      layout = PixelLayout::kGrey;
      info_.out_color_space = JCS_GRAYSCALE;
    } else if (info_.num_components == 4) {
      layout = PixelLayout::kInvertedCmyk;
      info_.out_color_space = JCS_CMYK;
    }
    jpeg_start_decompress(&info_);
    while (info_.output_scanline < info_.output_height) {
      JSAMPROW row = row_.data();
      const std::int64_t number = info_.output_scanline;
      jpeg_read_scanlines(&info_, &row, 1);
      planes_->put(number, layout, row);
    }
    jpeg_finish_decompress(&info_);  // Reads to the end of the image.
  }

  std::span<const std::byte> bytes_;
  std::string_view name_;
  Failure failure_{};
  jpeg_source_mgr source_{};
  Progress progress_{};
  jpeg_decompress_struct info_{};
  std::vector<JSAMPLE> row_;
  ImagePlanes* planes_ = nullptr;
};

}  // namespace

at::Tensor decode_jpeg(std::span<const std::byte> bytes, const ImageOptions& options,
                       std::string_view name) {
  return Decoder(bytes, name).decode(options);
}

}  // namespace trireme::data::detail
