# trireme_room(<name> SOURCES <files…> [HEADERS <files…>] [ROOMS <rooms…>] [LINK <targets…>] [PRIVATE <targets…>] [TORCH none|aten|full]
#              [ALONE <files…>])
#
# Declares the library of one room. ROOMS are the rooms above it that it uses. TORCH says how much of LibTorch its
# sources include: nothing, single ATen and c10d headers, or torch/torch.h, which comes precompiled. ALONE are files that TRIREME_UNITY joins with no other.
function(trireme_room name)
  cmake_parse_arguments(room "" "TORCH" "SOURCES;HEADERS;ROOMS;LINK;PRIVATE;ALONE" ${ARGN})
  set(target trireme_${name})
  add_library(${target} STATIC ${room_SOURCES})
  add_library(trireme::${name} ALIAS ${target})
  target_sources(${target} PUBLIC FILE_SET HEADERS BASE_DIRS ${PROJECT_SOURCE_DIR} FILES ${room_HEADERS})
  target_include_directories(${target} PUBLIC $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
  set_target_properties(${target} PROPERTIES EXPORT_NAME ${name})
  target_compile_features(${target} PUBLIC cxx_std_20)
  list(TRANSFORM room_ROOMS PREPEND trireme_)
  target_link_libraries(${target} PUBLIC ${room_ROOMS} ${room_LINK} PRIVATE ${room_PRIVATE}
                                         $<BUILD_INTERFACE:trireme_options>)
  if(room_TORCH AND NOT room_TORCH STREQUAL "none")
    target_link_libraries(${target} PUBLIC torch)
  endif()
  if(room_TORCH STREQUAL "full")
    target_precompile_headers(${target} REUSE_FROM trireme_pch)
    trireme_joined(${target} ${room_ALONE})
  endif()
  set_property(GLOBAL APPEND PROPERTY TRIREME_ROOMS ${target})
endfunction()
