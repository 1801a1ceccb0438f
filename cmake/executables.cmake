# The executables of a wheel. ament's wrappers look their function up in the metadata that ament writes, which a wheel replaces by
# its own, and carry the path of the interpreter that built them; a wheel may be built in one environment and unpacked in another.
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS setup.cfg)
file(STRINGS setup.cfg entries REGEX "^ +[a-z_]+ = [a-z0-9_.]+:[a-z_]+$")
foreach(entry IN LISTS entries)
  string(REGEX MATCH "([a-z_]+) = ([a-z0-9_.]+):([a-z_]+)" entry "${entry}")
  set(module ${CMAKE_MATCH_2})
  set(function ${CMAKE_MATCH_3})
  set(executable ${CMAKE_CURRENT_BINARY_DIR}/executables/${CMAKE_MATCH_1})
  configure_file(cmake/executable.in ${executable} @ONLY)
  install(PROGRAMS ${executable} DESTINATION lib/${PROJECT_NAME})
endforeach()
