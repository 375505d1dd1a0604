// SPDX-License-Identifier: Apache-2.0
#include <png.h>

#include <trireme/base/error.h>
#include <trireme/data/images/planes.h>

#include <array>
#include <cstdio>
#include <cstring>
#include <vector>

namespace trireme::data::detail {
namespace {

// Runs the steps of decoding. Each step runs within returns(), so errors of libpng leave it by
// longjmp; between the steps, C++ code may allocate and throw.
class Decoder {
 public:
  Decoder(std::span<const std::byte> bytes, std::string_view name) : bytes_(bytes), name_(name) {}
  Decoder(const Decoder&) = delete;
  Decoder& operator=(const Decoder&) = delete;
  ~Decoder() { png_destroy_read_struct(&png_, &info_, nullptr); }  // Safe if there is none.

  at::Tensor decode(const ImageOptions& options) {
    run<&Decoder::read_header>();
    height_ = png_get_image_height(png_, info_);
    ImagePlanes planes(name_, height_, png_get_image_width(png_, info_), options);
    planes_ = &planes;
    run<&Decoder::choose_layout>();
    const std::size_t row_bytes = png_get_rowbytes(png_, info_);
    pixels_.resize(row_bytes * (passes_ == 1 ? 1 : static_cast<std::size_t>(height_)));
    row_bytes_ = row_bytes;
    run<&Decoder::read_rows>();
    return planes.tensor();
  }

 private:
  template <void (Decoder::*Step)()>
  void run() {
    if (!returns(jump_, [](void* self) { (static_cast<Decoder*>(self)->*Step)(); }, this)) {
      throw DataError(join_message(name_, ": offset ", place_, ": PNG: ", text_.data()),
                      "get the file anew, or take it out of the data set");
    }
  }

  [[noreturn]] void leave(const char* text) {
    std::snprintf(text_.data(), text_.size(), "%s", text);
    std::longjmp(jump_, 1);
  }

  [[noreturn]] static void fail(png_structp png, png_const_charp text) {
    static_cast<Decoder*>(png_get_error_ptr(png))->leave(text);
  }

  // Ignores warnings, such as one about a colour profile, which is not used anyway.
  static void ignore(png_structp /*png*/, png_const_charp /*text*/) {}

  static void read(png_structp png, png_bytep to, std::size_t count) {
    auto* decoder = static_cast<Decoder*>(png_get_io_ptr(png));
    if (count > decoder->bytes_.size() - decoder->place_) {
      decoder->place_ = decoder->bytes_.size();
      decoder->leave("the file is cut short");
    }
    std::memcpy(to, decoder->bytes_.data() + decoder->place_, count);
    decoder->place_ += count;
  }

  void read_header() {
    png_ = png_create_read_struct(PNG_LIBPNG_VER_STRING, this, fail, ignore);
    if (png_ == nullptr) leave("libpng cannot be started: no memory, or another version of it");
    info_ = png_create_info_struct(png_);
    if (info_ == nullptr) leave("no memory");
    png_set_read_fn(png_, this, read);
    png_set_user_limits(png_, PNG_UINT_31_MAX, PNG_UINT_31_MAX);  // ImagePlanes has the limit.
    // Skips chunks that pixels do not depend on: a compressed text may unpack to any size.
    png_set_keep_unknown_chunks(png_, PNG_HANDLE_CHUNK_NEVER, nullptr, -1);
    png_read_info(png_, info_);
  }

  // Asks libpng for pixels of one or three 8-bit values.
  void choose_layout() {
    const png_byte color_type = png_get_color_type(png_, info_);
    const bool is_color = (color_type & PNG_COLOR_MASK_COLOR) != 0;
    layout_ = is_color ? PixelLayout::kRgb : PixelLayout::kGrey;
    if (color_type == PNG_COLOR_TYPE_PALETTE) png_set_palette_to_rgb(png_);
    if (!is_color && png_get_bit_depth(png_, info_) < 8) png_set_expand_gray_1_2_4_to_8(png_);
    png_set_strip_16(png_);
    png_set_strip_alpha(png_);
    passes_ = png_set_interlace_handling(png_);
    png_read_update_info(png_, info_);
    if (png_get_channels(png_, info_) != static_cast<png_byte>(layout_) ||
        png_get_bit_depth(png_, info_) != 8)
      leave("libpng does not give the pixels that it was asked for");
  }

  void read_rows() {
    if (passes_ == 1) {
      for (std::int64_t row = 0; row < height_; ++row) {
        png_read_row(png_, pixels_.data(), nullptr);
        planes_->put(row, layout_, pixels_.data());
      }
    } else {
      // Each pass of an interlaced image adds pixels to existing rows, so the whole image is kept.
      for (int pass = 0; pass < passes_; ++pass) {
        for (std::int64_t row = 0; row < height_; ++row) png_read_row(png_, at(row), nullptr);
      }
      for (std::int64_t row = 0; row < height_; ++row) planes_->put(row, layout_, at(row));
    }
    png_read_end(png_, nullptr);
  }

  png_bytep at(std::int64_t row) {
    return pixels_.data() + static_cast<std::size_t>(row) * row_bytes_;
  }

  std::span<const std::byte> bytes_;
  std::size_t place_ = 0;
  std::string_view name_;
  std::jmp_buf jump_{};
  std::array<char, 256> text_{};
  png_structp png_ = nullptr;
  png_infop info_ = nullptr;
  PixelLayout layout_ = PixelLayout::kRgb;
  int passes_ = 1;
  std::int64_t height_ = 0;
  std::size_t row_bytes_ = 0;
  std::vector<png_byte> pixels_;  // One row, or the whole image if it is interlaced.
  ImagePlanes* planes_ = nullptr;
};

}  // namespace

at::Tensor decode_png(std::span<const std::byte> bytes, const ImageOptions& options,
                      std::string_view name) {
  return Decoder(bytes, name).decode(options);
}

}  // namespace trireme::data::detail
