# One target a folder: sluice_library(NAME DEPS ...) takes every .cpp of the
# folder but tests and benchmarks; tests become one binary NAME_test.
#
# The arrows between folders are the DEPS; tools/check_layers.py holds the
# includes against them.

include(GoogleTest)

add_custom_target(benchmarks)
add_custom_target(check_headers)

set(SLUICE_WARNINGS -Wall -Wextra -Wshadow -Wnon-virtual-dtor -Woverloaded-virtual
                    -Wimplicit-fallthrough -Wold-style-cast
                    -Wno-missing-field-initializers)  # designated initializers name what matters
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  list(APPEND SLUICE_WARNINGS -Wno-maybe-uninitialized)  # ghosts in optional and expected
  if(SLUICE_SANITIZE MATCHES "thread")
    list(APPEND SLUICE_WARNINGS -Wno-tsan)  # Boost's fences: ThreadSanitizer does not follow them
  endif()
endif()
if(SLUICE_WERROR)
  list(APPEND SLUICE_WARNINGS -Werror)
endif()

function(sluice_library name)
  cmake_parse_arguments(ARG "" "" "DEPS;PRIVATE_DEPS;SUBDIRS" ${ARGN})
  set(patterns *.cpp *.h)
  foreach(sub IN LISTS ARG_SUBDIRS)
    list(APPEND patterns ${sub}/*.cpp ${sub}/*.h)
  endforeach()
  file(GLOB sources CONFIGURE_DEPENDS RELATIVE ${CMAKE_CURRENT_SOURCE_DIR} ${patterns})
  set(tests ${sources})
  list(FILTER tests INCLUDE REGEX "_test\\.cpp$")
  set(benches ${sources})
  list(FILTER benches INCLUDE REGEX "_bench\\.cpp$")
  list(FILTER sources EXCLUDE REGEX "_(test|bench)\\.cpp$")

  add_library(sluice_${name} STATIC ${sources})
  target_include_directories(sluice_${name} PUBLIC ${PROJECT_SOURCE_DIR}/src)
  target_compile_options(sluice_${name} PRIVATE ${SLUICE_WARNINGS})
  target_link_libraries(sluice_${name} PUBLIC ${ARG_DEPS} PRIVATE ${ARG_PRIVATE_DEPS})
  set_target_properties(sluice_${name} PROPERTIES LINKER_LANGUAGE CXX)

  if(SLUICE_TESTS AND tests)
    add_executable(${name}_test ${tests})
    target_compile_options(${name}_test PRIVATE ${SLUICE_WARNINGS})
    target_link_libraries(${name}_test PRIVATE sluice_${name} ${ARG_PRIVATE_DEPS} GTest::gtest
                                               GTest::gmock GTest::gtest_main)
    gtest_discover_tests(${name}_test DISCOVERY_TIMEOUT 60 PROPERTIES LABELS unit)
  endif()
  if(SLUICE_BENCHMARKS AND benches)
    add_executable(${name}_bench ${benches})
    target_compile_options(${name}_bench PRIVATE ${SLUICE_WARNINGS})
    target_link_libraries(${name}_bench PRIVATE sluice_${name} ${ARG_PRIVATE_DEPS}
                                                benchmark::benchmark benchmark::benchmark_main)
    add_dependencies(benchmarks ${name}_bench)
  endif()
  sluice_check_headers(${name} "${sources}" "${ARG_PRIVATE_DEPS}")
endfunction()

# Every header compiles alone: target check_headers, which no default build contains.
function(sluice_check_headers name sources deps)
  list(FILTER sources INCLUDE REGEX "\\.h$")
  list(FILTER sources EXCLUDE REGEX "-inl\\.h$")
  set(units)
  foreach(header IN LISTS sources)
    file(RELATIVE_PATH rooted ${PROJECT_SOURCE_DIR}/src ${CMAKE_CURRENT_SOURCE_DIR}/${header})
    string(MAKE_C_IDENTIFIER ${header} unit)
    set(unit ${CMAKE_CURRENT_BINARY_DIR}/headers/${unit}.cpp)
    file(CONFIGURE OUTPUT ${unit} CONTENT "#include \"${rooted}\"\n")
    list(APPEND units ${unit})
  endforeach()
  if(units)
    add_library(sluice_${name}_headers OBJECT EXCLUDE_FROM_ALL ${units})
    target_compile_options(sluice_${name}_headers PRIVATE ${SLUICE_WARNINGS} -O0 -g0)
    target_link_libraries(sluice_${name}_headers PRIVATE sluice_${name} ${deps}
                                                         $<TARGET_NAME_IF_EXISTS:GTest::gtest>)
    add_dependencies(check_headers sluice_${name}_headers)
  endif()
endfunction()
