# Man pages and completions of shells, which the program writes from its own options; cmake/Install.cmake includes this.
set(manual ${PROJECT_BINARY_DIR}/manual)
find_program(TRIREME_GZIP gzip)
set(compress "")
if(TRIREME_GZIP)
  set(compress COMMAND ${TRIREME_GZIP} --recursive --best --no-name ${manual}/man1)
endif()
add_custom_command(OUTPUT ${manual}/complete
  COMMAND ${CMAKE_COMMAND} -E rm -rf ${manual}
  COMMAND trireme_program man-pages ${manual}/man1 ${compress}
  COMMAND trireme_program completion bash > ${manual}/trireme
  COMMAND trireme_program completion zsh > ${manual}/_trireme
  COMMAND trireme_program completion fish > ${manual}/trireme.fish
  COMMAND ${CMAKE_COMMAND} -E touch ${manual}/complete
  DEPENDS trireme_program
  COMMENT "Writing man pages and completions" VERBATIM)
add_custom_target(trireme_manual ALL DEPENDS ${manual}/complete)

# Debian's zsh does not look into site-functions below /usr.
set(zsh_folder site-functions)
if(EXISTS /etc/debian_version)
  set(zsh_folder vendor-completions)
endif()
install(DIRECTORY ${manual}/man1 DESTINATION ${CMAKE_INSTALL_MANDIR})
install(FILES ${manual}/trireme DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions)
install(FILES ${manual}/_trireme DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/${zsh_folder})
install(FILES ${manual}/trireme.fish DESTINATION ${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d)
