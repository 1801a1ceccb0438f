# Used where the ROS 2 packages come from PyPI wheels: always for `pip install .` (scikit-build-core sets SKBUILD), for colcon with
# -DRFM_ROS_WHEELS=ON. With a normal ROS installation this file is never included.
#
# 1. Point CMake and ament at the prefix the wheels were unpacked into (the environment, or pip's isolated build overlay).
find_package(Python3 REQUIRED COMPONENTS Interpreter)
execute_process(
  COMMAND ${Python3_EXECUTABLE} -c "import ament_package, pathlib; print(pathlib.Path(ament_package.__file__).resolve().parents[4])"
  OUTPUT_VARIABLE _ros_prefix OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
list(PREPEND CMAKE_PREFIX_PATH "${_ros_prefix}")
set(ENV{AMENT_PREFIX_PATH} "${_ros_prefix}")
message(STATUS "ROS 2 wheels found in ${_ros_prefix}")

# 2. Their exported *__rosidl_generator_py targets carry include directories of the container they were built in, which make CMake
# fail to generate: drop what does not exist. Our own such target names numpy's headers; CMake refuses to export those when
# the environment lies inside the source tree: nobody who installs the package needs them.
function(mend_include_directories)
  get_property(targets DIRECTORY PROPERTY IMPORTED_TARGETS)
  foreach(target IN LISTS targets ITEMS ${PROJECT_NAME}__rosidl_generator_py)
    get_target_property(dirs ${target} INTERFACE_INCLUDE_DIRECTORIES)
    if(dirs)
      set(kept "")
      foreach(dir IN LISTS dirs)
        string(FIND "${dir}" "${CMAKE_SOURCE_DIR}/" inside)
        if(inside EQUAL 0)
          list(APPEND kept "$<BUILD_INTERFACE:${dir}>")
        elseif(dir MATCHES "\\$<" OR EXISTS "${dir}")
          list(APPEND kept "${dir}")
        endif()
      endforeach()
      set_target_properties(${target} PROPERTIES INTERFACE_INCLUDE_DIRECTORIES "${kept}")
    endif()
  endforeach()
endfunction()
cmake_language(DEFER CALL mend_include_directories)
