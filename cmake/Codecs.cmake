# Libraries that decode images and sound. Where one is missing, a twin of what needs it is built, which says so when it is
# used. To build without: -DCMAKE_DISABLE_FIND_PACKAGE_JPEG=ON, -DTRIREME_SNDFILE_LIBRARY=OFF.
find_package(JPEG)
find_package(PNG)
set(TRIREME_IMAGES FALSE)
if(JPEG_FOUND AND PNG_FOUND)
  set(TRIREME_IMAGES TRUE)
else()
  message(STATUS "No images: libjpeg or libpng is missing (libjpeg-dev, libpng-dev)")
endif()

find_path(TRIREME_SNDFILE_INCLUDE sndfile.h)
find_library(TRIREME_SNDFILE_LIBRARY sndfile)
set(TRIREME_AUDIO FALSE)
if(TRIREME_SNDFILE_INCLUDE AND TRIREME_SNDFILE_LIBRARY)
  set(TRIREME_AUDIO TRUE)
else()
  message(STATUS "No sound files: libsndfile is missing (libsndfile1-dev)")
endif()
