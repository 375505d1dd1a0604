# Read by CPack for each package: a Debian package is for /usr, an archive for any folder.
if(CPACK_GENERATOR STREQUAL "DEB")
  set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
endif()
