// SPDX-License-Identifier: Apache-2.0
// Pixels of JPEG and PNG. That they are Pillow's to the last bit: tests/parity/data.
#include <trireme/data/images/decode.h>

#include "encoders.h"
#include <trireme/base/error.h>

#include <ATen/TensorOperators.h>
#include <ATen/ops/equal.h>
#include <gmock/gmock.h>
#include <jpeglib.h>
#include <png.h>
#include <sys/stat.h>
#include <tests/temporary_folder.h>

#include <array>
#include <atomic>
#include <span>
#include <thread>
#include <utility>

namespace trireme::data {
namespace {

using test::message_of;
using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::jpeg_of;
using testing::noise;
using testing::Pixels;
using testing::plain;
using testing::png_of;
using testing::PngSettings;
using Sizes = std::vector<std::int64_t>;

constexpr ImageOptions kGrey = {.colors = Colors::kGrey};

at::Tensor decode(const std::string& file, const ImageOptions& options = {}) {
  return decode_image(std::as_bytes(std::span(file)), options, "photo");
}

int value_at(const at::Tensor& image, std::int64_t channel, std::int64_t row, std::int64_t column) {
  return image
      .const_data_ptr<std::uint8_t>()[(channel * image.size(1) + row) * image.size(2) + column];
}

// Whether the first channels of the pixels are the planes of the image.
void expect_pixels(const at::Tensor& image, const Pixels& pixels) {
  EXPECT_EQ(image.scalar_type(), at::kByte);
  ASSERT_EQ(image.sizes(), (Sizes{3, pixels.height, pixels.width}));
  const bool is_grey = pixels.channels < 3;
  int differences = 0;
  for (std::int64_t row = 0; row < pixels.height; ++row) {
    for (std::int64_t column = 0; column < pixels.width; ++column) {
      for (std::int64_t channel = 0; channel < 3; ++channel) {
        differences +=
            value_at(image, channel, row, column) != pixels.at(row, column, is_grey ? 0 : channel);
      }
    }
  }
  EXPECT_EQ(differences, 0);
}

// All pixels within 2 of these.
void expect_color(const at::Tensor& image, const std::vector<int>& color) {
  ASSERT_EQ(image.size(0), static_cast<std::int64_t>(color.size()));
  for (std::size_t channel = 0; channel < color.size(); ++channel) {
    const at::Tensor plane = image[static_cast<std::int64_t>(channel)].to(at::kInt);
    EXPECT_NEAR(plane.min().item<int>(), color[channel], 2) << "channel " << channel;
    EXPECT_NEAR(plane.max().item<int>(), color[channel], 2) << "channel " << channel;
  }
}

TEST(DecodePng, GivesThePixelsOfEveryKind) {
  struct Case {
    int color_type;
    std::int64_t channels;
  };
  for (const auto& [color_type, channels] :
       {Case{PNG_COLOR_TYPE_GRAY, 1}, Case{PNG_COLOR_TYPE_GRAY_ALPHA, 2},
        Case{PNG_COLOR_TYPE_RGB, 3}, Case{PNG_COLOR_TYPE_RGB_ALPHA, 4}}) {
    for (const auto& [height, width] :
         {std::pair{1, 1}, std::pair{5, 7}, std::pair{17, 3}, std::pair{1, 40}}) {
      for (const bool is_interlaced : {false, true}) {
        SCOPED_TRACE(join_message("color type ", color_type, ", ", height, " x ", width,
                                  is_interlaced ? ", interlaced" : ""));
        const Pixels pixels = noise(height, width, channels);
        expect_pixels(decode(png_of(height, width, {color_type, 8, is_interlaced}, pixels.bytes)),
                      pixels);
      }
    }
  }
}

TEST(DecodePng, KeepsTheHighByteOf16Bits) {
  for (const auto& [color_type, channels] :
       {std::pair{PNG_COLOR_TYPE_GRAY, 1}, std::pair{PNG_COLOR_TYPE_RGB, 3},
        std::pair{PNG_COLOR_TYPE_RGB_ALPHA, 4}}) {
    const Pixels pixels = noise(6, 5, channels);
    std::vector<std::uint8_t> rows;
    for (const std::uint8_t byte : pixels.bytes) rows.insert(rows.end(), {byte, 0xFF});
    expect_pixels(decode(png_of(6, 5, {color_type, 16}, rows)), pixels);
  }
}

TEST(DecodePng, SpreadsFewGreyLevelsOver8Bits) {
  const at::Tensor bits = decode(png_of(1, 8, {PNG_COLOR_TYPE_GRAY, 1}, {0b10110001}));
  for (int column = 0; column < 8; ++column)
    EXPECT_EQ(value_at(bits, 1, 0, column), (0b10110001 >> (7 - column) & 1) * 255);
  const at::Tensor pairs = decode(png_of(1, 4, {PNG_COLOR_TYPE_GRAY, 2}, {0b00011011}));
  for (int column = 0; column < 4; ++column) EXPECT_EQ(value_at(pairs, 2, 0, column), column * 85);
  const at::Tensor nibbles = decode(png_of(1, 2, {PNG_COLOR_TYPE_GRAY, 4}, {0x2C}));
  EXPECT_EQ(value_at(nibbles, 0, 0, 0), 0x22);
  EXPECT_EQ(value_at(nibbles, 0, 0, 1), 0xCC);
}

TEST(DecodePng, LooksUpPalettesAndDropsTheirTransparency) {
  PngSettings settings{.color_type = PNG_COLOR_TYPE_PALETTE, .bit_depth = 2};
  settings.adjust = [](png_structp png, png_infop info) {
    const std::array<png_color, 3> palette = {png_color{10, 20, 30}, {40, 50, 60}, {200, 210, 220}};
    png_set_PLTE(png, info, palette.data(), static_cast<int>(palette.size()));
    const std::array<png_byte, 2> alpha = {0, 128};
    png_set_tRNS(png, info, alpha.data(), static_cast<int>(alpha.size()), nullptr);
  };
  const at::Tensor image = decode(png_of(1, 4, settings, {0b10000100}));
  ASSERT_EQ(image.sizes(), (Sizes{3, 1, 4}));
  for (int channel = 0; channel < 3; ++channel) {
    EXPECT_EQ(value_at(image, channel, 0, 0), 200 + 10 * channel);
    EXPECT_EQ(value_at(image, channel, 0, 1), 10 + 10 * channel);
    EXPECT_EQ(value_at(image, channel, 0, 2), 40 + 10 * channel);
    EXPECT_EQ(value_at(image, channel, 0, 3), 10 + 10 * channel);
  }
}

TEST(DecodePng, PaysNoHeedToGammaTransparencyAndTexts) {
  const Pixels pixels = noise(4, 4, 3);
  PngSettings settings{.color_type = PNG_COLOR_TYPE_RGB};
  settings.adjust = [](png_structp png, png_infop info) {
    png_set_gAMA(png, info, 1.0);
    png_color_16 transparent{};
    png_set_tRNS(png, info, nullptr, 0, &transparent);
    std::string key = "Comment";
    std::string value(100'000, 'x');
    png_text text{};
    text.compression = PNG_TEXT_COMPRESSION_zTXt;
    text.key = key.data();
    text.text = value.data();
    text.text_length = value.size();
    png_set_text(png, info, &text, 1);
  };
  expect_pixels(decode(png_of(4, 4, settings, pixels.bytes)), pixels);
}

TEST(DecodePng, FindsEveryBitThatWasFlipped) {
  const std::string file = png_of(3, 4, {PNG_COLOR_TYPE_RGB}, noise(3, 4, 3).bytes);
  for (std::size_t bit = 0; bit < 8 * file.size(); ++bit) {
    std::string damaged = file;
    damaged[bit / 8] = static_cast<char>(damaged[bit / 8] ^ (1 << bit % 8));
    EXPECT_THROW(decode(damaged), DataError) << "bit " << bit;
  }
}

TEST(DecodeJpeg, ComesNearTheColorsThatWereEncoded) {
  expect_color(decode(jpeg_of(plain(9, 13, {200, 30, 90}))), {200, 30, 90});
  expect_color(decode(jpeg_of(plain(16, 16, {77}))), {77, 77, 77});
  EXPECT_EQ(decode(jpeg_of(plain(9, 13, {1}))).sizes(), (Sizes{3, 9, 13}));
}

TEST(DecodeJpeg, KeepsItsPixelsInPlace) {
  Pixels pixels = plain(16, 24, {0, 0, 0});
  for (std::size_t row = 0; row < 16; ++row) {
    for (std::size_t column = 8; column < 16; ++column) pixels.bytes[(row * 24 + column) * 3] = 255;
  }
  const at::Tensor image = decode(jpeg_of(pixels));  // the middle block is red
  expect_color(image.slice(2, 0, 8), {0, 0, 0});
  expect_color(image.slice(2, 8, 16), {255, 0, 0});
  expect_color(image.slice(2, 16, 24), {0, 0, 0});
}

TEST(DecodeJpeg, TakesProgressiveFilesAndRgbAsItIs) {
  const Pixels pixels = plain(20, 20, {10, 150, 250});
  expect_color(decode(jpeg_of(pixels, [](auto& info) { jpeg_simple_progression(&info); })),
               {10, 150, 250});
  expect_color(decode(jpeg_of(pixels, [](auto& info) { jpeg_set_colorspace(&info, JCS_RGB); })),
               {10, 150, 250});
}

TEST(DecodeJpeg, MixesInvertedCmyk) {
  expect_color(decode(jpeg_of(plain(8, 8, {200, 100, 50, 255}))), {200, 100, 50});
  expect_color(decode(jpeg_of(plain(8, 8, {255, 255, 255, 100}))), {100, 100, 100});
  expect_color(decode(jpeg_of(plain(8, 8, {0, 255, 128, 128}))), {0, 128, 64});
  const Pixels pixels = plain(8, 8, {200, 100, 50, 255});
  expect_color(decode(jpeg_of(pixels, [](auto& info) { jpeg_set_colorspace(&info, JCS_YCCK); })),
               {200, 100, 50});
}

TEST(DecodeJpeg, DoesNotFollowTheOrientation) {
  const std::string exif("Exif\0\0II*\0\x08\0\0\0\1\0\x12\1\3\0\1\0\0\0\6\0\0\0\0\0\0\0", 32);
  const auto write_orientation = [&](auto& info) {
    jpeg_write_marker(&info, JPEG_APP0 + 1, reinterpret_cast<const JOCTET*>(exif.data()),
                      static_cast<unsigned>(exif.size()));
  };
  const Pixels pixels = plain(4, 12, {5, 6, 7});
  EXPECT_EQ(decode(jpeg_of(pixels, [](auto&) {}, write_orientation)).sizes(), (Sizes{3, 4, 12}));
}

TEST(DecodeJpeg, TakesOdditiesThatLeaveThePixelsWhole) {
  const std::string file = jpeg_of(noise(20, 30, 3));
  const at::Tensor image = decode(file);
  EXPECT_TRUE(at::equal(decode(file + "something after the end"), image));
  const std::string stuffed = file.substr(0, file.size() - 2) + std::string(8, '\0') + "\xFF\xD9";
  EXPECT_TRUE(at::equal(decode(stuffed), image));
}

TEST(DecodeJpeg, RefusesPixelsThatTheLibraryMadeUp) {
  const std::string file = jpeg_of(noise(64, 64, 3));
  EXPECT_THAT(message_of<DataError>([&] { decode(file.substr(0, file.size() / 2) + "\xFF\xD9"); }),
              AllOf(HasSubstr("photo: offset "), HasSubstr("premature end of data segment")));
}

TEST(DecodeJpeg, RefusesKindsThatItCannotTell) {
  EXPECT_THAT(message_of<DataError>([&] { decode(jpeg_of(noise(8, 8, 2))); }),
              HasSubstr("JPEG: two channels, expected 1, 3 or 4"));
  std::string file = jpeg_of(noise(8, 8, 3));
  file[file.find("\xFF\xC0") + 4] = 12;
  EXPECT_THAT(message_of<DataError>([&] { decode(file); }), HasSubstr("precision 12"));
}

TEST(DecodeJpeg, LimitsTheNumberOfScans) {
  std::vector<jpeg_scan_info> scans = {{3, {0, 1, 2}, 0, 0, 0, 0}};
  for (int component = 0; component < 3; ++component) {
    for (int frequency = 1; frequency < 64; ++frequency) {
      for (int bit = 3; bit >= 0; --bit)
        scans.push_back({1, {component}, frequency, frequency, bit == 3 ? 0 : bit + 1, bit});
    }
  }
  const std::string file = jpeg_of(noise(8, 8, 3), [&](auto& info) {
    info.scan_info = scans.data();
    info.num_scans = static_cast<int>(scans.size());
  });
  EXPECT_THAT(message_of<DataError>([&] { decode(file); }), HasSubstr("more than 500 scans"));
  scans.resize(400);
  EXPECT_EQ(decode(jpeg_of(noise(8, 8, 3),
                           [&](auto& info) {
                             info.scan_info = scans.data();
                             info.num_scans = static_cast<int>(scans.size());
                           }))
                .sizes(),
            (Sizes{3, 8, 8}));
}

TEST(DecodeJpeg, LimitsTheWorkOfProgressiveFiles) {
  std::vector<jpeg_scan_info> scans = {{3, {0, 1, 2}, 0, 0, 0, 0}};
  for (int frequency = 1; frequency < 31; ++frequency)
    scans.push_back({1, {0}, frequency, frequency, 0, 0});
  const std::string file = jpeg_of(noise(16, 16, 3), [&](auto& info) {
    info.scan_info = scans.data();
    info.num_scans = static_cast<int>(scans.size());
  });
  EXPECT_EQ(decode(file, {.max_progressive_pixels = 1024}).sizes(), (Sizes{3, 16, 16}));
  EXPECT_THAT(message_of<DataError>([&] { decode(file, {.max_progressive_pixels = 256}); }),
              HasSubstr("more scans than an image of this size may have"));
  EXPECT_THAT(message_of<DataError>([&] { decode(file, {.max_progressive_pixels = 255}); }),
              AllOf(HasSubstr("the progressive image has 16 x 16 pixels, more than the 255"),
                    HasSubstr("max_progressive_pixels")));
  EXPECT_EQ(decode(jpeg_of(noise(16, 16, 3)), {.max_progressive_pixels = 1}).numel(), 768);
}

// A flipped bit gives another picture or an error, never anything worse.
TEST(DecodeJpeg, SurvivesEveryBitThatWasFlipped) {
  const std::string file = jpeg_of(noise(9, 9, 3), [](auto& info) { info.restart_interval = 1; });
  int errors = 0;
  for (std::size_t bit = 0; bit < 8 * file.size(); ++bit) {
    std::string damaged = file;
    damaged[bit / 8] = static_cast<char>(damaged[bit / 8] ^ (1 << bit % 8));
    try {
      decode(damaged, {.max_pixels = 100'000});
    } catch (const DataError&) {
      ++errors;
    }
  }
  EXPECT_GT(errors, 0);
}

std::vector<std::string> one_of_each() {
  return {jpeg_of(noise(12, 10, 3)),
          jpeg_of(noise(12, 10, 1), [](auto& info) { jpeg_simple_progression(&info); }),
          png_of(5, 6, {PNG_COLOR_TYPE_RGB}, noise(5, 6, 3).bytes),
          png_of(9, 6, {PNG_COLOR_TYPE_GRAY, 8, true}, noise(9, 6, 1).bytes)};
}

TEST(DecodeImage, RefusesAFileThatIsCutShortAnywhere) {
  for (const std::string& file : one_of_each()) {
    for (std::size_t bytes = 0; bytes < file.size(); ++bytes)
      EXPECT_THROW(decode(file.substr(0, bytes)), DataError) << bytes << " of " << file.size();
    EXPECT_THAT(message_of<DataError>([&] { decode(file.substr(0, file.size() / 2)); }),
                AllOf(HasSubstr(join_message("photo: offset ", file.size() / 2)),
                      HasSubstr("the file is cut short")));
  }
}

TEST(DecodeImage, MakesGreyOfColorsAsPillowDoes) {
  const Pixels pixels = noise(5, 7, 3);
  const at::Tensor grey = decode(png_of(5, 7, {PNG_COLOR_TYPE_RGB}, pixels.bytes), kGrey);
  ASSERT_EQ(grey.sizes(), (Sizes{1, 5, 7}));
  for (std::int64_t row = 0; row < 5; ++row) {
    for (std::int64_t column = 0; column < 7; ++column) {
      const int sum = 19595 * pixels.at(row, column, 0) + 38470 * pixels.at(row, column, 1) +
                      7471 * pixels.at(row, column, 2);
      EXPECT_EQ(value_at(grey, 0, row, column), (sum + 32768) / 65536);
    }
  }
  EXPECT_TRUE(at::equal(decode(png_of(1, 2, {PNG_COLOR_TYPE_GRAY}, {7, 9}), kGrey),
                        decode(png_of(1, 2, {PNG_COLOR_TYPE_GRAY}, {7, 9})).slice(0, 0, 1)));
  expect_color(decode(jpeg_of(plain(8, 8, {255, 255, 255, 100})), kGrey), {100});
}

TEST(DecodeImage, LimitsThePixels) {
  for (const std::string& file : one_of_each()) {
    const at::Tensor image = decode(file);
    const std::int64_t pixels = image.size(1) * image.size(2);
    EXPECT_EQ(decode(file, {.max_pixels = pixels}).numel(), 3 * pixels);
    EXPECT_THAT(message_of<DataError>([&] { decode(file, {.max_pixels = pixels - 1}); }),
                HasSubstr(join_message("photo: the image has ", image.size(1), " x ", image.size(2),
                                       " pixels, more than the ", pixels - 1)));
  }
}

TEST(DecodeImage, SaysHowAFileOfAnotherKindBegins) {
  EXPECT_THAT(message_of<DataError>([] { decode("GIF89a..."); }),
              HasSubstr("photo: offset 0: neither JPEG nor PNG: it begins with 47 49 46 38 39 61"));
  EXPECT_THAT(message_of<DataError>([] { decode(""); }), HasSubstr("it is empty"));
}

TEST(DecodeImage, WorksOnSeveralThreadsBesideFilesThatFail) {
  const std::vector<std::string> files = one_of_each();
  std::vector<at::Tensor> expected;
  expected.reserve(files.size());
  for (const std::string& file : files) expected.push_back(decode(file));
  std::atomic<int> wrong = 0;
  const auto work = [&] {
    for (std::size_t i = 0; i < 200; ++i) {
      const std::string& file = files[i % files.size()];
      wrong += !at::equal(decode(file), expected[i % files.size()]);
      try {
        decode(file.substr(0, file.size() - 3));
        ++wrong;
      } catch (const DataError& error) {
        wrong += std::string(error.what()).find("cut short") == std::string::npos;
      }
    }
  };
  {
    std::vector<std::jthread> threads;
    for (int i = 0; i < 4; ++i) threads.emplace_back(work);
  }
  EXPECT_EQ(wrong, 0);
}

TEST(ReadImage, ReadsAFile) {
  const test::TemporaryFolder folder;
  const Pixels pixels = noise(300, 200, 3);
  const auto path = folder.write("a.png", png_of(300, 200, {PNG_COLOR_TYPE_RGB}, pixels.bytes));
  expect_pixels(read_image(path), pixels);
  EXPECT_EQ(read_image(path, kGrey).size(0), 1);
}

TEST(ReadImage, NamesTheFileThatItCannotRead) {
  const test::TemporaryFolder folder;
  EXPECT_THAT(message_of<DataError>([&] { read_image(folder / "none.png"); }),
              HasSubstr((folder / "none.png").string() + " cannot be opened: No such file"));
  EXPECT_THAT(message_of<DataError>([&] { read_image(folder.path()); }),
              HasSubstr(folder.path().string() + " is a folder, expected a regular file"));
  // Nobody writes to it: opening it did not end.
  ASSERT_EQ(::mkfifo((folder / "x.jpg").c_str(), 0600), 0);
  EXPECT_THAT(message_of<DataError>([&] { read_image(folder / "x.jpg"); }),
              HasSubstr("x.jpg is a FIFO, expected a regular file"));
  const auto empty = folder.write("empty.jpg", "");
  EXPECT_THAT(message_of<DataError>([&] { read_image(empty); }),
              HasSubstr(empty.string() + ": offset 0: neither JPEG nor PNG: it is empty"));
}

}  // namespace
}  // namespace trireme::data
